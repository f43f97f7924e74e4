"""Optional abilities of trackers, as protocols: check with ``isinstance(tracker, LogsImages)``."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class LogsImages(Protocol):
    """A tracker that shows images."""

    def log_images(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log one image or several under each name."""


@runtime_checkable
class LogsFigures(Protocol):
    """A tracker that shows matplotlib figures."""

    def log_figures(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log figures by name, in their current state."""


@runtime_checkable
class LogsHistograms(Protocol):
    """A tracker that shows distributions."""

    def log_histograms(self, values: dict[str, Any], step: int | None = None) -> None:
        """Log the distribution of the elements of tensors of any shape and device, or arrays, by name."""


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
        """Log a table, from ``columns`` and ``data``, or from a pandas ``dataframe``."""


@runtime_checkable
class LogsArtifacts(Protocol):
    """A tracker that stores files."""

    def log_artifact(self, local_path: str, artifact_path: str | None = None) -> None:
        """Upload or copy a file, below ``artifact_path`` if given."""


ABILITIES = {
    "images": LogsImages,
    "figures": LogsFigures,
    "histograms": LogsHistograms,
    "tables": LogsTables,
    "artifacts": LogsArtifacts,
}
"""The protocols by ability, in the order of the table in the README."""
