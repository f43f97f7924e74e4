"""What the launcher says to the person at the terminal: answers on stdout, everything else on stderr."""

from __future__ import annotations

import sys


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


def _to_stderr(line: str) -> None:
    sys.stdout.flush()  # keep the order where both go to one place
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
