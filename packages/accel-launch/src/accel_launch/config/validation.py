"""What kinds of values a config file may hold: checked before anything prints or converts them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from accel_launch.config.keys import LIST_KEYS, MAPPING_KEYS

# Far more than any real file; a YAML file of a few lines can stand for billions of values through its aliases.
_MOST_VALUES = 10_000


def problem_of(key: str, value: Any) -> str | None:
    """Say what is wrong with the kind of a key's value, None if nothing is.

    Only the kind is looked at: a scalar, a list of them for keys that hold several, a mapping for those that hold
    one. Whether the value itself makes sense is for the setting to say.
    """
    if isinstance(value, dict) and value and key not in MAPPING_KEYS:
        return "it must be a single value, but it holds keys of its own"
    if isinstance(value, list) and value and key not in LIST_KEYS:
        return "it must be a single value, but it holds a list"
    for place, leaf in enumerate(_leaves(value)):
        if place == _MOST_VALUES:
            return f"it holds more than {_MOST_VALUES} values"
        problem = _problem_of_leaf(leaf)
        if problem:
            return problem
    return None


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            waiting += [*current.keys(), *current.values()]
            yield None
        elif isinstance(current, list):
            waiting += current
            yield None
        else:
            yield current


def _problem_of_leaf(leaf: Any) -> str | None:
    if leaf is None or isinstance(leaf, (bool, int, float)):
        return None
    if not isinstance(leaf, str):
        return f"it must be text or a number, but it is read as a {type(leaf).__name__}; put it in quotes"
    try:
        is_fit = b"\0" not in os.fsencode(leaf)
    except UnicodeEncodeError:
        is_fit = False
    return None if is_fit else "it holds a character that no command line or variable can carry"
