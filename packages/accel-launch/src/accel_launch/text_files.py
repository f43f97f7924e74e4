"""Reading the small text files that a person names: never waiting for a writer, and no more than such a file has."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_MAX_BYTES = 2**18


def read_text_file(path: Path) -> str:
    """Return the text of a file.

    Raises:
        OSError: If it cannot be read, is a pipe that no program writes to, or is larger than 256 KiB.
        UnicodeDecodeError: If it is not UTF-8.
    """
    with open(path, "rb", buffering=0, opener=_open_at_once) as file:
        text = file.read(1)
        if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
            if text == b"":
                raise OSError(errno.EINVAL, "it is a pipe that no program writes to")
            os.set_blocking(file.fileno(), True)
            text = text or b""  # None: not yet written
        while len(text) <= _MAX_BYTES and (chunk := file.read(_MAX_BYTES)):
            text += chunk
    if len(text) > _MAX_BYTES:
        raise OSError(errno.EFBIG, f"it is larger than {_MAX_BYTES >> 10} KiB")
    return text.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _open_at_once(path: str, flags: int) -> int:
    # Without it, opening a pipe would wait for a program that writes to it.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
