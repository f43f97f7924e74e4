"""SLURM's short notations: ``n[01-03,7],gpu5`` for hosts, ``2(x3),1`` for tasks per node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from accel_state.errors import ConfigError

_PATTERN = re.compile(r"(?:[^\[\],\s]|\[[^\[\]]*\])+")
_BRACKET = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def first_host(text: str, *, variable: str) -> str:
    """Return the first host of a compressed list, without writing the others out."""
    return next(iter_hosts(text, variable=variable))


def iter_hosts(text: str, *, variable: str) -> Iterator[str]:
    """Yield the hosts of a compressed list; a text that is none is a `ConfigError` naming ``variable``."""
    parts = _split_outside_brackets(text.strip())
    if not all(_PATTERN.fullmatch(part) for part in parts):
        raise _unreadable(text, variable)
    for part in parts:
        yield from _hosts_of(part, text, variable)


def expand_counts(text: str, *, variable: str) -> list[int]:
    """Return one number per node: ``2(x3),1`` gives ``2, 2, 2, 1``."""
    counts: list[int] = []
    for part in text.strip().split(","):
        match = _COUNT.fullmatch(part.strip())
        if match is None:
            raise ConfigError(f"`{variable}` is `{text}`, but it must look like `2(x3),1`.")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _hosts_of(pattern: str, text: str, variable: str) -> Iterator[str]:
    bracket = _BRACKET.search(pattern)
    if bracket is None:
        yield pattern
        return
    head, tail = pattern[: bracket.start()], pattern[bracket.end() :]
    for number in _numbers_of(bracket[1], text, variable):
        # Names of several dimensions have several brackets: `rack[0-1]n[0-3]`.
        yield from _hosts_of(head + number + tail, text, variable)


def _numbers_of(inside: str, text: str, variable: str) -> Iterator[str]:
    for part in inside.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _unreadable(text, variable)
        start, end = match[1], match[2] or match[1]
        if int(end) < int(start):
            raise _unreadable(text, variable)
        for number in range(int(start), int(end) + 1):
            yield str(number).zfill(len(start))


def _unreadable(text: str, variable: str) -> ConfigError:
    return ConfigError(f"`{variable}` is `{text}`, but it must be a list of hosts such as `n[01-03,7],gpu5`.")
