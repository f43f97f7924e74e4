"""Optional abilities of trackers, as protocols: check with ``isinstance(tracker, LogsImages)``.

A tracker has an ability if it has its method. A service derives from the protocol and implements a hook, such as
`_log_images`, which the method calls with the open run.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from accel_state.errors import ConfigError
from accel_trackers.general_tracker import on_main_process

# `self` is `Any`: a hook that was a member of the protocol would be required of trackers that have none.


@runtime_checkable
class LogsImages(Protocol):
    """A tracker that shows images."""

    @on_main_process
    def log_images(self: Any, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log one image or several under each name (see `accel_trackers.images.pictures`).

        Args:
            values: Images by name; several under one name are shown together, or logged as ``name/0``, ``name/1``, ….
            step: Step of the images.
            kwargs: Keyword arguments for the library's function, which the class names.
        """
        self._log_images(self.tracker, values, step, **kwargs)


@runtime_checkable
class LogsFigures(Protocol):
    """A tracker that shows matplotlib figures."""

    @on_main_process
    def log_figures(self: Any, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log figures, in their current state, as images unless the service has figures; as `log_images`."""
        self._log_figures(self.tracker, values, step, **kwargs)


@runtime_checkable
class LogsHistograms(Protocol):
    """A tracker that shows distributions."""

    @on_main_process
    def log_histograms(self: Any, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log the distribution of the elements of tensors of any shape and device, arrays or lists; as `log_images`."""
        self._log_histograms(self.tracker, values, step, **kwargs)


@runtime_checkable
class LogsTables(Protocol):
    """A tracker that shows tables."""

    @on_main_process
    def log_table(
        self: Any,
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
        if dataframe is not None:
            columns, data = None, dataframe
        elif data is None:
            raise ConfigError("`log_table` has no rows. Pass `data` (and `columns`), or a `dataframe`.")
        self._log_table(self.tracker, table_name, columns, data, step, **kwargs)


@runtime_checkable
class LogsArtifacts(Protocol):
    """A tracker that stores files."""

    @on_main_process
    def log_artifact(self: Any, local_path: str, artifact_path: str | None = None, **kwargs: Any) -> None:
        """Store a file, or a folder where the service has folders.

        Args:
            local_path: File or folder.
            artifact_path: Folder or name of the artifact, as the class says.
            kwargs: Keyword arguments for the library's function, which the class names.
        """
        self._log_artifact(self.tracker, local_path, artifact_path, **kwargs)


ABILITIES = {
    "images": LogsImages,
    "figures": LogsFigures,
    "histograms": LogsHistograms,
    "tables": LogsTables,
    "artifacts": LogsArtifacts,
}
"""The protocols by ability, in the order of the table in the README."""
