"""Kinds of text that only settings of a launch have."""

from __future__ import annotations

import re
import shlex
from functools import partial

from accel_state.environment.parsers import Parser, boolean

_TEE = re.compile(r"[0-3]|\d:[0-3](,\d:[0-3])*")
_PAIRS = re.compile(r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*")
# Names and quantities as Kubernetes takes them.
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
_REFERENCE = r"[A-Za-z_]\w*=[a-z0-9][-.a-z0-9]*:[-._a-zA-Z0-9]+"
_REFERENCES = re.compile(rf"{_REFERENCE}(,{_REFERENCE})*")
_VARIABLE = re.compile(r"[A-Za-z_]\w*")
MOST_RANKS = 2**17
"""More than any run has. A launch plans each of its ranks, for which a slip of the keyboard would take all memory."""


def _match(pattern: re.Pattern[str], given: str) -> str:
    if pattern.fullmatch(given) is None:
        raise ValueError(given)
    return given


def _to_ranks(given: str) -> tuple[int, ...]:
    found: set[int] = set()
    for part in given.split(","):
        first, _, last = part.partition("-")
        if not int(first) <= int(last or first) < MOST_RANKS:
            raise ValueError(given)
        found.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(found))


def _to_shell_words(given: str) -> str:
    shlex.split(given)
    return given


def _to_three_booleans(given: str) -> tuple[bool, bool, bool]:
    values = [boolean(part) for part in given.strip("()[] ").split(",")]
    first, second, third = values * 3 if len(values) == 1 else values
    return first, second, third


def _to_assignments(given: str) -> tuple[str, ...]:
    found: list[str] = []
    for line in given.splitlines():
        of_line: list[str] = []
        for part in line.split(","):
            if of_line and "=" in of_line[-1] and "=" not in part:
                of_line[-1] += f",{part}"  # a value with a comma in it
            elif part.strip():
                of_line.append(part.strip())
        found += of_line
    if not all(_VARIABLE.fullmatch(one.partition("=")[0]) for one in found):
        raise ValueError(given)
    return tuple(found)


tee = Parser("0, 1, 2 or 3, or such a number for each local rank, as in `0:3,1:1`", partial(_match, _TEE))
pairs = Parser(
    "`KEY=VALUE`, or several of them with commas between", partial(_match, _PAIRS), metavar="KEY=VALUE"
)
ranks = Parser("ranks with commas between, as in `0,4-7`", _to_ranks)
shell_words = Parser("words as for a shell, with each quote closed", _to_shell_words)
dns_label = Parser("lower-case letters, digits and dashes, at most 63", partial(_match, _LABEL))
quantity = Parser(
    "a quantity as Kubernetes writes it, such as `4`, `500m` or `64Gi`", partial(_match, _QUANTITY)
)
secret_references = Parser(
    "`VARIABLE=SECRET:KEY`, or several of them with commas between",
    partial(_match, _REFERENCES),
    metavar="NAME=SECRET:KEY",
)
three_booleans = Parser(
    "true or false, or three of them with commas between", _to_three_booleans, metavar="BOOL,BOOL,BOOL"
)
assignments = Parser(
    "`NAME=VALUE` or `NAME`, with commas or line ends between several",
    _to_assignments,
    metavar="NAME[=VALUE]",
)
