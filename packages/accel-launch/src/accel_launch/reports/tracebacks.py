"""Finding the exception that ended a Python program in the last lines it wrote."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

_RANK_PREFIX = re.compile(r"^\[(?:rank)?\d+\]: ?")  # torch writes it before each line once ranks have met
_HEADER = "Traceback (most recent call last):"
_GROUP_HEADER, _GROUP_MARGIN = f"  + Exception Group {_HEADER}", "  | "
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?$')
_EXCEPTION = re.compile(r"^(?P<type>[A-Za-z_][\w.]*(?:\.<locals>\.[\w.]+)*)(?:: (?P<message>.*))?$")
_SYNTAX_ERRORS = ("SyntaxError", "IndentationError", "TabError")
# Where code lives that the person did not write.
_FOREIGN = re.compile(r"/(?:site|dist)-packages/|/lib/python3[^/]*/|^<|/accel_\w+/")

# What a rank says that lost another one: the cause is to be looked for there.
_LOST_PEER = re.compile(
    r"connection (?:was )?(?:closed|reset|refused)|broken pipe|remote process exited|lost connection"
    r"|ncclRemoteError|NCCL communicator was aborted|NCCL watchdog|socketProgress"
    r"|failed to recv, got 0 bytes|Timed out waiting .*ms for (?:recv|send)|heartbeat",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class FoundException:
    """An exception as its traceback tells it: in one's own code if any frame is, else where it was raised."""

    type: str
    message: str
    file: str | None = None
    line: int | None = None
    function: str | None = None
    ends_output: bool = field(default=True, compare=False)

    def describe(self) -> str:
        """Return ``ValueError: told to (train.py:9 in step)``."""
        told = f"{self.type}: {self.message}" if self.message else self.type
        if self.file is None:
            return told
        where = f"{self.file}:{self.line}"
        return (
            f"{told} ({where})"
            if self.function in (None, "<module>")
            else f"{told} ({where} in {self.function})"
        )

    @property
    def is_about_a_lost_peer(self) -> bool:
        """Whether it says that another rank had gone before."""
        return bool(_LOST_PEER.search(f"{self.type}: {self.message}"))


def find_exception(lines: Sequence[str]) -> FoundException | None:
    """Return the exception whose traceback ends ``lines``, or None if there is none."""
    plain = [_RANK_PREFIX.sub("", line) for line in lines]
    headers = [index for index, line in enumerate(plain) if line in (_HEADER, _GROUP_HEADER)]
    if not headers:
        return _syntax_error(plain)
    margin = _GROUP_MARGIN if plain[headers[-1]] == _GROUP_HEADER else ""
    return _in_block([line.removeprefix(margin) for line in plain[headers[-1] + 1 :]])


def _in_block(block: Sequence[str]) -> FoundException | None:
    end = next((i for i, line in enumerate(block) if line and not line[0].isspace()), None)
    match = _EXCEPTION.match(block[end]) if end is not None else None
    if match is None or end is None:
        return None
    return replace(_found(match, block[:end]), ends_output=not any(block[end + 1 :]))


def _syntax_error(lines: Sequence[str]) -> FoundException | None:
    """Find what Python says of a script that it cannot read; there is no traceback then."""
    for index in range(len(lines) - 1, 0, -1):
        match = _EXCEPTION.match(lines[index])
        if match is not None and match["type"] in _SYNTAX_ERRORS:
            return _found(match, lines[max(0, index - 4) : index])
    return None


def _found(exception: re.Match[str], block: Sequence[str]) -> FoundException:
    frames = [frame for frame in map(_FRAME.match, block) if frame is not None]
    own = [frame for frame in frames if not _FOREIGN.search(frame["file"])]
    kind, message = exception["type"], exception["message"] or ""
    if not frames:
        return FoundException(kind, message)
    frame = (own or frames)[-1]
    return FoundException(kind, message, frame["file"], int(frame["line"]), frame["function"])
