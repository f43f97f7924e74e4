"""Calls into the file system below a folder that fail, from the call of a number on."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from accel_checkpoint.saving import staging

CHANGING = ("mkdir", "rename", "replace", "link", "fsync", "write")
READING = ("stat", "lstat", "listdir", "scandir", "open")


class Faults:
    """Counts calls while it is armed, and fails one of them, or all from there on (``goes_on``)."""

    def __init__(self, patch: pytest.MonkeyPatch, folder: Path, error: str) -> None:
        self.patch, self.folder, self.error = patch, str(folder), getattr(errno, error)
        self.at: int | None = None

    def arm(self, at: int, *, goes_on: bool = False) -> None:
        self.at, self.goes_on, self.count, self.hit = at, goes_on, 0, ""

    def disarm(self) -> None:
        self.at = None

    def check(self, name: str, path: Any) -> None:
        """Count a call, and raise the error if it is to fail."""
        if self.at is None or not self._is_below(path):
            return
        self.count += 1
        if self.count == self.at or (self.goes_on and self.count > self.at):
            self.hit = self.hit or f"{name} {path}"
            raise OSError(self.error, os.strerror(self.error), *([str(path)] if name != "read" else []))

    def watch(self, module: Any, name: str, is_meant: Any = lambda *_, **__: True) -> None:
        real = getattr(module, name)

        def watched(*args: Any, **options: Any) -> Any:
            if is_meant(*args, **options):
                try:
                    self.check(name, args[0] if args else ".")
                except OSError:
                    if name == "close":
                        real(*args, **options)  # the descriptor is gone all the same
                    raise
            return real(*args, **options)

        self.patch.setattr(module, name, watched)

    def watch_changes(self) -> None:
        for name in CHANGING:
            self.watch(os, name)
        self.watch(os, "open", lambda path, flags, *_, **__: flags & (os.O_WRONLY | os.O_RDWR))
        self.watch(io, "open", lambda path, mode="r", *_, **__: not mode.startswith("r"))
        self.watch(staging, "exchange")
        self.watch(os, "close", lambda file: not self._goes_on() and stat.S_ISREG(os.fstat(file).st_mode))

    def watch_reads(self) -> None:
        for name in READING:
            self.watch(os, name)
        real, faults = io.open, self

        class File(io.FileIO):
            """A file each read of which is one of the calls; reads do not know the path."""

            def read(self, size: int = -1) -> Any:
                faults.check("read", self.name)
                return super().read(size)

            def readall(self) -> Any:
                faults.check("read", self.name)
                return super().readall()

            def readinto(self, buffer: Any) -> Any:
                faults.check("read", self.name)
                return super().readinto(buffer)

        def opened(file: Any, mode: str = "r", buffering: int = -1, *args: Any, **options: Any) -> Any:
            self.check("open", file)
            if self.at is None or mode != "rb" or isinstance(file, int):
                return real(file, mode, buffering, *args, **options)
            raw = File(file)
            return raw if buffering == 0 else io.BufferedReader(raw)

        for module in (io, builtins):
            self.patch.setattr(module, "open", opened)

    def _goes_on(self) -> bool:
        return self.at is None or self.goes_on

    def _is_below(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        return isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith(self.folder)
