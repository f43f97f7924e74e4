"""The base class of trackers for services: one run object, opened once and closed once, and methods around hooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_state.errors import ConfigError, StateError
from accel_state.user_warnings import warn_user
from accel_trackers.general_tracker import GeneralTracker
from accel_trackers.main_process import on_main_process, runs_here
from accel_trackers.values import as_number, as_plain_data


class ServiceTracker(GeneralTracker):
    """Base of trackers whose library has a run object; subclasses implement `_open`, `_close` and the other hooks.

    The library is imported when the run is opened, on the main process only. ``name`` is also its name in
    accel-state's table of packages, which determines whether it is installed. Libraries with a queue and thread of
    their own are called directly, the default; see `GeneralTracker.log_in_background`. Each hook gets the open run.

    Args:
        run_name: Name of the run, or of the project of a service that names runs itself.
        kwargs: Keyword arguments for the library.
    """

    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__()
        self.run_name = run_name
        self._kwargs = kwargs
        self._run: Any = None
        self._is_finished = False
        self._warned_of: set[str] = set()

    @classmethod
    def why_not_available(cls) -> str | None:
        """Return why the library is unavailable and what to install, ``None`` if it is available."""
        from accel_state.availability import why_not

        return why_not(cls.name)

    @property
    def tracker(self) -> Any:
        """The run object of the library.

        Raises:
            StateError: On other processes than the main one, and after `finish`.
        """
        if not runs_here(self):
            raise StateError(
                f"The tracker `{self.name}` has a run on the main process only. "
                "Use it under `if PartialState().is_main_process`."
            )
        if self._is_finished:
            raise StateError(
                f"The run of the tracker `{self.name}` is finished. Start a new one to log more."
            )
        if self._run is None:
            self._run = self._open()
        return self._run

    @on_main_process
    def start(self) -> None:
        """Open the run, if it is not open yet."""
        _ = self.tracker

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store ``values`` as the configuration, hyperparameters or parameters of the run."""
        self._store_config(self.tracker, as_plain_data(values))

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log ``values`` by name; those of types that the class does not name are skipped, with one warning per name.

        Args:
            values: Values by name; dicts are logged as ``name/inner`` unless the service has groups of values.
            step: Step of the values.
            kwargs: Keyword arguments for the library's function, which the class names.
        """
        self._log(self.tracker, values, step, **kwargs)

    @on_main_process
    def log_images(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log one image or several under each name (see `accel_trackers.images.pictures`).

        Args:
            values: Images by name; several under one name are shown together, or logged as ``name/0``, ``name/1``, ….
            step: Step of the images.
            kwargs: Keyword arguments for the library's function, which the class names.
        """
        self._log_images(self.tracker, values, step, **kwargs)

    @on_main_process
    def log_figures(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log matplotlib figures by name, as images unless the service has figures; arguments as for `log_images`."""
        self._log_figures(self.tracker, values, step, **kwargs)

    @on_main_process
    def finish(self) -> None:
        """End the run. All logged values are written when this returns."""
        if self._run is not None and not self._is_finished:
            self._close(self._run)
        self._is_finished = True

    def _open(self) -> Any:
        raise NotImplementedError

    def _close(self, run: Any) -> None:
        raise NotImplementedError

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run.config.update(values)

    def _log(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        raise NotImplementedError

    def _log_images(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        raise NotImplementedError

    def _log_figures(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        self.log_images(values, step=step, **kwargs)

    def _numbers(self, values: Mapping[str, Any]) -> dict[str, int | float]:
        """Return the numeric ``values``, with one-element tensors as numbers; warn about each other name once."""
        numbers = {name: as_number(value) for name, value in values.items()}
        for name, number in numbers.items():
            if number is None:
                self._warn_once(name, values[name], "numbers and dicts of numbers")
        return {name: number for name, number in numbers.items() if number is not None}

    def _warn_once(self, name: str, value: Any, shown: str) -> None:
        if name not in self._warned_of:
            self._warned_of.add(name)
            warn_user(
                f"The tracker `{self.name}` skips `{name}`: its `log` accepts {shown}, not "
                f"{type(value).__name__}. Use its other methods, or its `tracker`, for other types.",
                main_process_only=False,
            )


class GroupedTracker(ServiceTracker):
    """Base of trackers of services that show the runs of all ranks together, by their group.

    Args:
        run_name: Name of the project; the service names the run, unless ``name`` is given.
        main_process_only: If False, each rank has a run; they share the ``group``, which is required then.
        kwargs: Keyword arguments for the library's ``init``.

    Raises:
        ConfigError: If ``main_process_only`` is False and no ``group`` is given.
    """

    def __init__(self, run_name: str, *, main_process_only: bool = True, **kwargs: Any) -> None:
        if not main_process_only and not kwargs.get("group"):
            raise ConfigError(
                f"`main_process_only=False` creates a {self.name} run for each rank. Pass `group` too, a name for "
                f"the training, so that {self.name} shows these runs together."
            )
        super().__init__(run_name, **kwargs)
        self.main_process_only = main_process_only


class WithHistograms(ServiceTracker):
    """Base of trackers of services that show distributions."""

    @on_main_process
    def log_histograms(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the elements of tensors of any shape and device, arrays or lists, by name.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: Keyword arguments for the library's function, which the class names.
        """
        self._log_histograms(self.tracker, values, step, **kwargs)

    def _log_histograms(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        raise NotImplementedError


class WithTables(ServiceTracker):
    """Base of trackers of services that show tables."""

    @on_main_process
    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a table, from ``columns`` and ``data``, or from a pandas ``dataframe``.

        Args:
            table_name: Name of the table, or of its file; the class names the suffix.
            columns: Column names.
            data: Rows.
            dataframe: A pandas data frame, in place of both.
            step: Step of the table; part of the file name in services whose tables have no step.
            kwargs: Keyword arguments for the library's function, which the class names.

        Raises:
            ConfigError: If neither ``data`` nor ``dataframe`` is given.
        """
        self._log_table(self.tracker, table_name, (columns, data, dataframe), step, **kwargs)

    def _log_table(
        self, run: Any, name: str, table: tuple[Any, Any, Any], step: int | None, **kwargs: Any
    ) -> None:
        raise NotImplementedError


class WithArtifacts(ServiceTracker):
    """Base of trackers of services that store files."""

    @on_main_process
    def log_artifact(self, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Store a file, or a folder where the service has folders.

        Args:
            local_path: File or folder.
            artifact_path: Folder or name of the artifact, as the class says.
            kwargs: Keyword arguments for the library's function, which the class names.
        """
        self._log_artifact(self.tracker, local_path, artifact_path, **kwargs)

    def _log_artifact(self, run: Any, local_path: str, artifact_path: str | None, **kwargs: Any) -> None:
        raise NotImplementedError
