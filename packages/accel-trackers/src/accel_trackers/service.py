"""Base classes of trackers with a run object: opened once and closed once, with public methods around hooks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accel_state.errors import ConfigError, StateError
from accel_state.user_warnings import warn_user
from accel_trackers.abilities import LogsFigures, LogsImages
from accel_trackers.general_tracker import GeneralTracker, on_main_process, runs_here
from accel_trackers.values import as_number, as_plain_data, flat


class RunTracker(GeneralTracker):
    """Base of trackers with a run, such as that of a service, or a file.

    Args:
        run_name: Name of the run, or of the project of a service that names runs itself.
    """

    # Hooks of subclasses. All but `_open` get the open run first.
    _open: Callable[[], Any]
    _close: Callable[[Any], None]
    _store_config: Callable[[Any, dict[str, Any]], None]
    _log: Callable[..., None]

    def __init__(self, run_name: str | None = None) -> None:
        super().__init__()
        self.run_name = run_name
        self._library: Any = None  # the module, set by `_open`, for the other hooks
        self._run: Any = None
        self._is_finished = False

    @property
    def tracker(self) -> Any:
        """The run, which the first use opens: the run object of the library, or the file.

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
    def finish(self) -> None:
        """End the run. All logged values are written when this returns."""
        if self._run is not None and not self._is_finished:
            self._close(self._run)
        self._is_finished = True


class ServiceTracker(RunTracker, LogsImages, LogsFigures):
    """Base of trackers of services: implement `_open`, `_close`, `_log` and `_log_images`.

    The library is imported when the run is opened, on the main process only. ``name`` is also its name in
    accel-state's table of packages, which determines whether it is installed. Libraries with a queue and thread of
    their own are called directly, the default; see `GeneralTracker.log_in_background`.

    Args:
        run_name: Name of the run, or of the project of a service that names runs itself.
        kwargs: Keyword arguments for the library.
    """

    requires_logging_directory = False

    def __init__(self, run_name: str | None = None, **kwargs: Any) -> None:
        super().__init__(run_name)
        self._kwargs = kwargs
        self._warned_of: set[str] = set()

    @classmethod
    def why_not_available(cls) -> str | None:
        """Return why the library is unavailable and what to install, ``None`` if it is available."""
        from accel_state.availability import why_not

        return why_not(cls.name)

    def _store_config(self, run: Any, values: dict[str, Any]) -> None:
        run.config.update(values)

    def _log_figures(self, run: Any, values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        self.log_images(values, step=step, **kwargs)

    def _supported(
        self,
        values: Mapping[str, Any],
        types: tuple[type, ...] = (),
        *,
        shown: str = "numbers and dicts of numbers",
    ) -> dict[str, Any]:
        """Flatten dicts, and return numbers, also of one-element tensors, and values of ``types``.

        Warns once about each other name, which is left out; ``shown`` names what is supported.
        """
        supported = {}
        for name, value in flat(values).items():
            number = as_number(value)
            if number is not None or isinstance(value, types):
                supported[name] = value if number is None else number
            else:
                self._warn_once(name, value, shown)
        return supported

    def _warn_once(self, name: str, value: Any, shown: str) -> None:
        if name not in self._warned_of:
            self._warned_of.add(name)
            warn_user(
                f"The tracker `{self.name}` skips `{name}`: its `log` accepts {shown}, not "
                f"{type(value).__name__}. Use its other methods, or its `tracker`, for other types.",
                main_process_only=False,
            )


class GroupedTracker(ServiceTracker):
    """Base of trackers of services that name runs themselves, and show those of all ranks together, by their group.

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
