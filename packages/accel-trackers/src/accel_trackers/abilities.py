"""What trackers can do beside `log`, as protocols: ``isinstance(tracker, LogsImages)`` tells."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class LogsImages(Protocol):
    """A tracker that shows images."""

    def log_images(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log images by name, one or many each."""


@runtime_checkable
class LogsFigures(Protocol):
    """A tracker that shows figures of matplotlib."""

    def log_figures(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log figures by name, as they are drawn now."""


@runtime_checkable
class LogsHistograms(Protocol):
    """A tracker that shows distributions."""

    def log_histograms(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log the distribution of the numbers in a tensor or array, by name."""


@runtime_checkable
class LogsTables(Protocol):
    """A tracker that shows tables."""

    def log_table(
        self,
        table_name: str,
        columns: list[str] | None = None,
        data: list[list[Any]] | None = None,
        dataframe: Any = None,
        step: int | None = None,
    ) -> None:
        """Log a table, from ``columns`` and ``data``, or from a ``dataframe`` of pandas."""


@runtime_checkable
class LogsArtifacts(Protocol):
    """A tracker that keeps files."""

    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Keep a file, below ``artifact_path`` if given."""


ABILITIES = {
    "images": LogsImages,
    "figures": LogsFigures,
    "histograms": LogsHistograms,
    "tables": LogsTables,
    "artifacts": LogsArtifacts,
}
"""The protocols by what is logged, in the order of the table in the README."""
