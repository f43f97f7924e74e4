"""What the launcher says to the person at the terminal: answers on stdout, everything else on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def show(text: str) -> None:
    """Write an answer that was asked for."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(f"{text}\n".encode(encoding, "backslashreplace").decode(encoding))


def inform(text: str) -> None:
    """Write one line about what is being done, beside the answer."""
    _to_stderr(text)


def warn(text: str) -> None:
    """Write one line about something that has no effect or may surprise."""
    _to_stderr(f"warning: {text}")


def complain(text: str) -> None:
    """Write one line about what went wrong."""
    _to_stderr(f"error: {text}")


def write_beside(line: str) -> None:
    """Write one line to stderr past all buffers, for a process that was forked and shares them."""
    os.write(2, f"{line}\n".encode(errors="backslashreplace"))


def compact(numbers: Sequence[int]) -> str:
    """Return ``0-2, 5`` for 0, 1, 2 and 5."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)


def _to_stderr(line: str) -> None:
    sys.stdout.flush()  # keep the order where both go to one place
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
