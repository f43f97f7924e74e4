"""JSON lines: one line of text per call of ``log``, with nothing to install."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import IO, Any

from accel_state.errors import ConfigError, StateError
from accel_state.user_warnings import warn_user
from accel_trackers.general_tracker import GeneralTracker
from accel_trackers.main_process import on_main_process, runs_here
from accel_trackers.values import as_plain_data


class JsonlTracker(GeneralTracker):
    """Appends ``{"time": …, "step": …, "values": {…}}`` lines to ``logging_dir/run_name/metrics.jsonl``.

    Each line is written to the operating system in full before ``log`` returns, so a killed process loses none.
    A resumed run appends to its file. ``config.json`` next to it has the configuration.

    Args:
        run_name: Name of the run and of its folder.
        logging_dir: Folder of all runs.
    """

    name = "jsonl"
    requires_logging_directory = True

    def __init__(self, run_name: str, logging_dir: str | os.PathLike[str]) -> None:
        super().__init__()
        self.run_name = run_name
        self.logging_dir = Path(logging_dir) / run_name
        self._file: IO[bytes] | None = None

    @property
    def path(self) -> Path:
        """The file with the metrics."""
        return self.logging_dir / "metrics.jsonl"

    @property
    def tracker(self) -> IO[bytes]:
        """The open file.

        Raises:
            StateError: On other processes than the main one.
            ConfigError: If the path of the file is not a regular file.
        """
        if not runs_here(self):
            raise StateError(
                "The tracker `jsonl` has a file on the main process only. "
                "Use it under `if PartialState().is_main_process`."
            )
        if self._file is not None and not self._file.closed:
            if os.fstat(self._file.fileno()).st_nlink:
                return self._file
            self._file.close()
            warn_user(
                f"`{self.path}` was deleted, with all values logged so far. The run continues in a new file."
            )
        self.logging_dir.mkdir(parents=True, exist_ok=True)
        for path in (self.path, self.logging_dir / "config.json"):
            if path.exists() and not path.is_file():
                raise ConfigError(f"`{path}` is not a regular file. Move it, or choose another run name.")
        self._end_torn_line()
        self._file = self.path.open("ab", buffering=0)
        return self._file

    @on_main_process
    def start(self) -> None:
        """Open the file, if it is not open yet."""
        _ = self.tracker

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write ``values`` to ``config.json``."""
        self.start()
        text = json.dumps(as_plain_data(values), indent=2, ensure_ascii=False)
        (self.logging_dir / "config.json").write_text(
            text + "\n", encoding="utf-8", errors="backslashreplace"
        )

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Append one line. Tensors of any shape and device become numbers or nested lists; other objects become text.

        Args:
            values: Values by name.
            step: Step of the values.
            kwargs: More members of the line, next to ``time``, ``step`` and ``values``.
        """
        line = as_plain_data({**kwargs, "time": time.time(), "step": step, "values": values})
        text = json.dumps(line, ensure_ascii=False, allow_nan=False)
        # UTF-8 cannot encode half of a surrogate pair, such as in a broken file name; it is escaped as in JSON.
        self.tracker.write(text.encode(errors="backslashreplace") + b"\n")

    @on_main_process
    def finish(self) -> None:
        """Force the file to disk and close it."""
        if self._file is not None and not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()

    def _end_torn_line(self) -> None:
        """End a line that a power cut left unfinished, so that the next one starts on a new line."""
        if self.path.is_file() and self.path.stat().st_size:
            with self.path.open("rb+") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
