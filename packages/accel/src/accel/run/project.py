"""Where a project keeps its checkpoints and logs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from accel_state.errors import ConfigError


@dataclass
class ProjectConfiguration:
    """Folders of a project and how its checkpoints are named and kept.

    Args:
        project_dir: Folder for everything the project writes.
        logging_dir: Folder for local trackers; `project_dir` where not given.
        automatic_checkpoint_naming: Number checkpoints `checkpoints/checkpoint_0`, `checkpoint_1`, …
        total_limit: Checkpoints to keep; older ones are deleted after a new one is complete.
        iteration: Number of the next checkpoint.
        save_on_each_node: Save on every machine's main process rather than on the one main process.

    Raises:
        ConfigError: If `total_limit` is below 1 or `iteration` is negative.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        if self.total_limit is not None and not (_is_number(self.total_limit) and self.total_limit >= 1):
            raise ConfigError(
                "`total_limit` must be a whole number of at least 1, or None (keep all), "
                f"got {self.total_limit!r}."
            )
        if not (_is_number(self.iteration) and self.iteration >= 0):
            raise ConfigError(f"`iteration` must be a whole number and not negative, got {self.iteration!r}.")
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | os.PathLike[str] | None = None) -> None:
        """Set `project_dir`, and `logging_dir` where it has no folder of its own yet."""
        self.project_dir = None if project_dir is None else os.fspath(project_dir)
        if self.logging_dir is None:
            self.logging_dir = self.project_dir


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
