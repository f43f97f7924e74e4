"""What the launcher says to the person at the terminal: answers on stdout, everything else on stderr.

A program that was started with one of them closed says nothing there.
"""

from __future__ import annotations

import os
import sys


def show(text: str) -> None:
    """Write an answer that was asked for."""
    if sys.stdout is None:
        return
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


def flush() -> None:
    """Write out what was said.

    Raises:
        BrokenPipeError: If nobody reads it any more.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_broken_output() -> bool:
    """Tell whether the reader of stdout is gone, as after `| head`; then nothing more is said there.

    Python would otherwise complain of it at its end.
    """
    try:
        flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
        return True
    return False


def _to_stderr(line: str) -> None:
    flush()  # keep the order where both go to one place
    if sys.stderr is not None:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
