"""Files that keep what ranks write (``--tee``, ``--log_dir``), in folders named as torchrun names them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from accel_launch.messages import inform, write_beside
from accel_launch.plan import LogSettings
from accel_state.errors import LaunchError

_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class RankLogs:
    """The files of one rank; None for a stream that goes to the screen only. ``prefix`` is for the screen."""

    stdout: Path | None
    stderr: Path | None
    prefix: str
    error_file: Path


@dataclass(frozen=True, slots=True)
class LogFolder:
    """The folder of one run: ``attempt_0/0/stdout.log`` is what local rank 0 wrote before the first restart."""

    path: Path
    settings: LogSettings

    def of(self, attempt: int, local_rank: int) -> RankLogs:
        """Make the folder of a rank and return its files."""
        folder = self.path / f"attempt_{attempt}" / str(local_rank)
        folder.mkdir(parents=True, exist_ok=True)
        streams = streams_to_tee(self.settings.tee, local_rank)
        return RankLogs(
            folder / "stdout.log" if streams & _STDOUT else None,
            folder / "stderr.log" if streams & _STDERR else None,
            f"[{self.settings.role}{local_rank}]:",
            folder / "error.json",
        )


def streams_to_tee(tee: str, local_rank: int) -> int:
    """Return 1 for stdout, 2 for stderr, 3 for both and 0 for none, as ``--tee`` asks for this rank."""
    if ":" not in tee:
        return int(tee)
    return {int(rank): int(streams) for rank, streams in (pair.split(":") for pair in tee.split(","))}.get(
        local_rank, 0
    )


@contextmanager
def log_folder(settings: LogSettings | None) -> Iterator[LogFolder | None]:
    """Make the folder of a run, None if nothing needs one. It is kept, unless nothing but errors go there.

    Raises:
        LaunchError: If it cannot be made.
    """
    if settings is None:
        yield None
    elif settings.folder is None and settings.tee == "0":
        with tempfile.TemporaryDirectory(prefix="accel-errors-") as folder:
            yield LogFolder(Path(folder), settings)
    else:
        folder = _make(settings)
        if settings.folder is None:
            inform(f"The output of the ranks is kept in {folder}")
        yield LogFolder(Path(folder), settings)


def _make(settings: LogSettings) -> str:
    if settings.folder is None:
        return tempfile.mkdtemp(prefix="accel-logs-")
    try:
        settings.folder.mkdir(parents=True, exist_ok=True)
        return tempfile.mkdtemp(prefix="run_", dir=settings.folder)
    except OSError as error:
        raise LaunchError(
            f"`--log_dir` is `{settings.folder}`, where no folder can be made: {error.strerror}. "
            "Name another folder."
        ) from error


class LogFile:
    """A file that a stream is copied to; if that fails, as on a full disk, the rest goes to the screen only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)

    def write(self, data: bytes) -> None:
        """Write all of ``data``."""
        if self._descriptor is None:
            return
        try:
            while data:
                data = data[os.write(self._descriptor, data) :]
        except OSError as error:
            write_beside(f"warning: `{self._path}` cannot be written any more: {error.strerror}.")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
