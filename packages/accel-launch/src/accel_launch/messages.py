"""Messages to the user: answers on stdout, everything else on stderr.

If one of them was closed at the start, its messages are dropped.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO


def show(text: str) -> None:
    """Write an answer that was asked for; BrokenPipeError, as after `| head`, ends a command without a word."""
    if sys.stdout is not None:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))


def inform(text: str) -> None:
    """Write one line about what is being done."""
    _to_stderr(text)


def warn(text: str) -> None:
    """Write one line about something that has no effect or may surprise."""
    _to_stderr(f"warning: {text}")


def complain(text: str) -> None:
    """Write one line about what went wrong."""
    _to_stderr(f"error: {text}")


def write_beside(line: str) -> None:
    """Write one line to stderr past all buffers, for a process that was forked and shares them."""
    with suppress(OSError):  # a terminal that was closed, a full disk: the run continues without the message
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def escaped(text: str) -> str:
    """Return text from another program with control characters escaped."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def compact(numbers: Sequence[int]) -> str:
    """Return ``0-2, 5`` for 0, 1, 2 and 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def flush() -> None:
    """Flush standard output."""
    if sys.stdout is not None:
        sys.stdout.flush()


def has_reader() -> bool:
    """Whether standard output can be written; if not, later output is dropped."""
    try:
        show("")
        flush()
    except BrokenPipeError:
        _write_nowhere(sys.stdout)
        return False
    return True


def _write_nowhere(stream: TextIO) -> None:
    """Discard the buffers of ``stream``, which Python would fail to write at its end."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def _to_stderr(line: str) -> None:
    flush()  # keep the order where both go to one place
    if sys.stderr is not None:
        try:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
        except OSError:  # there is no reader, and the exit code still shows the result
            _write_nowhere(sys.stderr)
