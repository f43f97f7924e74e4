"""Pass on what a process writes, at once and unchanged, remember its last lines, and keep copies (``--tee``).

What it writes to is a terminal where ours is one, so that progress bars and colours stay.
"""

from __future__ import annotations

import math
import os
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from accel_launch.messages import inform, write_beside
from accel_launch.plan import LogSettings
from accel_state.errors import LaunchError

# A line that begins with it is a message for the launcher and not for the screen.
MESSAGE_MARK = b"\x1eaccel-launch:"

_STDOUT, _STDERR = 1, 2
_CHUNK = 65536
_LINE = re.compile(rb"[^\r\n]*(?:\r\n|\r|\n)")


_MAX_LINES = 200
_MAX_PARTIAL = 2**18
_NUM_CHARACTERS = 2000  # of a line in reports
_LONGEST_MESSAGE_S = 5.0  # how long the exception that ends a program takes to be written
_LONGEST_END_S = 30.0  # how long a program may still write after the exception that ends it
_TRACEBACK = b"Traceback (most recent call last):"
# A worker of a loader that crashes writes a NUL before the traceback (torch 2.13).
_UNPRINTABLE = bytes(code for code in range(32) if code not in b"\t\n\r\x1b\x1e")


def complete_lines(pending: bytearray, chunk: bytes) -> list[bytes]:
    """Return the lines that end in ``chunk``, the first of them after what is ``pending``, which keeps the rest."""
    end = (
        max(chunk.rfind(b"\r"), chunk.rfind(b"\n")) + 1
    )  # beyond it, a search would try each byte as a beginning
    if end == 0:
        pending += chunk
        return []
    lines = _LINE.findall(pending + chunk[:end])
    pending[:] = chunk[end:]
    return lines


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """Write all of ``data``, however little of it the descriptor takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


class Tail:
    """Remembers the end of a stream; a carriage return ends a line too, so a progress bar is one line."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=_MAX_LINES)
        self._traceback: list[bytes] = []
        self._num_lines = _MAX_LINES  # since the last traceback began, at `_began_at`
        self._began_at = -math.inf
        self._partial = b""
        self.traceback_at: float | None = None

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        now = time.monotonic()
        if self.traceback_at is not None and now - self.traceback_at > _LONGEST_END_S:
            self.traceback_at = None  # it goes on: the exception was handled
        has_traceback = _TRACEBACK in self._partial + chunk
        if self.traceback_at is None and has_traceback:
            self.traceback_at = now
        *complete, self._partial = (self._partial + chunk.translate(None, _UNPRINTABLE)).split(b"\n")
        self._lines.extend(complete)
        starts = [place for place, line in enumerate(complete) if _TRACEBACK in line] if has_traceback else []
        if starts:
            complete = complete[starts[-1] :]
            self._traceback, self._num_lines, self._began_at = [], 0, now
        elif now - self._began_at > _LONGEST_MESSAGE_S:
            self._traceback = []
        if self._num_lines < _MAX_LINES:
            self._traceback += complete[:_MAX_LINES]
        self._num_lines += len(complete)
        if len(self._partial) > _MAX_PARTIAL:
            written_over = self._partial.rstrip(b"\r").rfind(b"\r") + 1
            self._partial = self._partial[written_over:][:_MAX_PARTIAL]

    def lines(self) -> tuple[str, ...]:
        """Return the lines, oldest first, as text; of a line that was written over, what stood there last.

        A message may be longer than what is remembered: the beginning of the last traceback stands before the rest.
        """
        before = self._traceback[: max(0, self._num_lines - len(self._lines))]
        whole = [*before, *self._lines, *filter(None, [self._partial])]
        texts = (line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace").rstrip() for line in whole)
        mark = MESSAGE_MARK.decode()
        return tuple(text if text.startswith(mark) else text[:_NUM_CHARACTERS] for text in texts if text)


@dataclass(slots=True)
class Channel:
    """One way from a process to one of our own outputs.

    By line, others that write to the same place cannot come in between; ``pending`` is the line not yet whole.
    ``log`` gets a copy of everything. Where it ``brings_messages``, lines with `MESSAGE_MARK` are not shown.
    """

    reader: int
    writer: int
    destination: int
    tail: Tail
    prefix: bytes = b""
    is_by_line: bool = False
    log: LogFile | None = None
    pending: bytearray = field(default_factory=bytearray)
    is_open: bool = True
    is_shown: bool = True
    brings_messages: bool = False

    def pump(self) -> bool:
        """Pass on what is there without waiting for more; return whether there was anything."""
        if not self.is_open:
            return False
        if os.isatty(self.reader):
            _copy_window_size(self.destination, self.reader)
        try:
            chunk = os.read(self.reader, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:  # how a terminal says that nobody is left at its other side
            chunk = b""
        if not chunk:
            self.close()
            return False
        self.tail.feed(chunk)
        if self.log is not None:
            self.log.write(chunk)
        self._write(self._whole_lines(chunk) if self.is_by_line else chunk)
        return True

    def flush(self) -> None:
        """Pass on a line that is not whole, such as a question to somebody at the terminal."""
        if self.pending and not self.prefix:
            self._write(self.pending)
            self.pending.clear()

    def close(self) -> None:
        """Pass on what is left of a line, and let the process know that nobody reads any more."""
        if self.is_open:
            if self.pending:
                self._write(self.prefix + self.pending + (b"\n" if self.prefix else b""))
                self.pending.clear()
            self.is_open = False
            os.close(self.reader)
            if self.log is not None:
                self.log.close()

    def _whole_lines(self, chunk: bytes) -> bytes:
        lines = complete_lines(self.pending, chunk)
        if len(self.pending) > _MAX_PARTIAL:
            lines.append(bytes(self.pending))
            self.pending.clear()
        if self.brings_messages:
            lines = [line for line in lines if not line.startswith(MESSAGE_MARK)]
        return b"".join(self.prefix + line for line in lines)

    def _write(self, data: bytes | bytearray) -> None:
        view = memoryview(data if self.is_shown else b"")
        while view:
            try:
                view = view[os.write(self.destination, view) :]
            except BlockingIOError:  # somebody made our output non-blocking: wait until it takes more
                _wait_until_writable(self.destination)
            except BrokenPipeError:  # our reader has gone, so the process's has too
                self.pending.clear()
                self.close()
                return
            except OSError:  # a terminal that was closed, a full disk: no reason to disturb the process
                return


class Output:
    """The outputs of one process: start it with `stdout` and `stderr`, then call `started`.

    What it writes goes to the screen if ``is_shown``. With ``logs`` the streams that they name are kept in files, and
    have their prefix on the screen, unless there is another one.
    """

    def __init__(
        self,
        *,
        prefix: str = "",
        is_by_line: bool = False,
        logs: RankLogs | None = None,
        is_shown: bool = True,
        brings_messages: bool = False,
        stdout: int = _STDOUT,
        stderr: int = _STDERR,
    ) -> None:
        self.tail = Tail()
        if logs is None:
            destinations = (stdout,) if _is_same_file(stdout, stderr) else (stdout, stderr)
            files: Sequence[Path | None] = (None,) * len(destinations)
        else:
            destinations, files = (stdout, stderr), (logs.stdout, logs.stderr)
        self.channels: list[Channel] = []
        for destination, file in zip(destinations, files, strict=True):
            shown = prefix or ("" if logs is None or file is None else logs.prefix)
            log = None if file is None else LogFile(file)
            by_line = is_by_line or bool(shown)
            way = _open_way(destination)
            channel = Channel(*way, destination, self.tail, shown.encode(), by_line, log)
            channel.is_shown, channel.brings_messages = is_shown, brings_messages
            self.channels.append(channel)
        self.stdout, self.stderr = self.channels[0].writer, self.channels[-1].writer

    def started(self) -> None:
        """Leave the writing ends to the process that has been started."""
        for channel in self.channels:
            os.close(channel.writer)

    @property
    def has_pending(self) -> bool:
        """Whether a line is waiting for its end."""
        return any(channel.pending and not channel.prefix for channel in self.channels)

    def flush(self) -> None:
        """Pass on lines that are not whole."""
        for channel in self.channels:
            channel.flush()

    def drain(self) -> None:
        """Pass on all that is there."""
        for channel in self.channels:
            while channel.pump():
                pass

    def close(self) -> None:
        """Pass on the rest and read no more."""
        self.drain()
        for channel in self.channels:
            channel.close()


def _open_way(destination: int) -> tuple[int, int]:
    """Return the reading and the writing end of a terminal, if ``destination`` is one, or else of a pipe."""
    if os.isatty(destination):
        import termios  # Windows has none
        import tty

        reader, writer = os.openpty()
        tty.setraw(writer, termios.TCSANOW)  # the terminal that we write to does what terminals do
        _copy_window_size(destination, reader)
    else:
        reader, writer = os.pipe()
    os.set_blocking(reader, False)
    return reader, writer


def _copy_window_size(source: int, target: int) -> None:
    import termios

    try:
        size = termios.tcgetwinsize(source)
        if size != termios.tcgetwinsize(target):
            termios.tcsetwinsize(target, size)
    except termios.error:  # a terminal that has been closed has no size
        return


def _is_same_file(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _wait_until_writable(descriptor: int) -> None:
    import select

    select.select([], [descriptor], [], 1.0)


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
            write_all(self._descriptor, data)
        except OSError as error:
            write_beside(f"warning: `{self._path}` cannot be written any more: {error.strerror}.")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
