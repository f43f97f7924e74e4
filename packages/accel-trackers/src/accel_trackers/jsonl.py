"""JSON lines: one line of text per call of ``log``, with nothing to install."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

from accel_state.errors import ConfigError
from accel_state.user_warnings import warn_user
from accel_trackers.service import RunTracker
from accel_trackers.values import as_plain_data


class JsonlTracker(RunTracker):
    """Appends ``{"time": …, "step": …, "values": {…}}`` lines to ``logging_dir/run_name/metrics.jsonl``.

    Each line is written to the operating system in full before ``log`` returns, so a killed process loses none. Tensors
    of any shape and device become numbers or nested lists; other objects become text. Keyword arguments of `log` are
    more members of the line. A resumed run appends to its file. ``config.json`` next to it has the configuration.

    Args:
        run_name: Name of the run and of its folder.
        logging_dir: Folder of all runs.
    """

    name = "jsonl"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str]) -> None:
        super().__init__(run_name)
        self.logging_dir = Path(logging_dir) / run_name

    @property
    def path(self) -> Path:
        """The file with the metrics."""
        return self.logging_dir / "metrics.jsonl"

    @property
    def tracker(self) -> IO[bytes]:
        """The open file; a new one if it was deleted.

        Raises:
            StateError: On other processes than the main one, and after `finish`.
            ConfigError: If the path of the file is not a regular file.
        """
        file: IO[bytes] = super().tracker
        if not os.fstat(file.fileno()).st_nlink:
            file.close()
            warn_user(
                f"`{self.path}` was deleted, with all values logged so far. The run continues in a new file."
            )
            self._run = file = self._open()
        return file

    def _open(self) -> IO[bytes]:
        self.logging_dir.mkdir(parents=True, exist_ok=True)
        for path in (self.path, self.logging_dir / "config.json"):
            if path.exists() and not path.is_file():
                raise ConfigError(f"`{path}` is not a regular file. Move it, or choose another run name.")
        file = self.path.open("ab+", buffering=0)
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # a line that a power cut left unfinished
                file.write(b"\n")
        return file

    def _close(self, run: IO[bytes]) -> None:
        os.fsync(run.fileno())
        run.close()

    def _store_config(self, run: IO[bytes], values: dict[str, Any]) -> None:
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (self.logging_dir / "config.json").write_text(text, encoding="utf-8", errors="backslashreplace")

    def _log(self, run: IO[bytes], values: dict[str, Any], step: int | None, **kwargs: Any) -> None:
        line = as_plain_data({**kwargs, "time": time.time(), "step": step, "values": values})
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        # UTF-8 cannot encode half of a surrogate pair, such as in a broken file name; it is escaped as in JSON.
        run.write(text.encode(errors="backslashreplace") + b"\n")
