"""Reading variables that are not in the table of settings, the way users' scripts know it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, overload

from accel_state.environment import parsers
from accel_state.environment.door import variable
from accel_state.errors import ConfigError


@overload
def str_to_bool(value: str, to_bool: Literal[True]) -> bool: ...
@overload
def str_to_bool(value: str, to_bool: bool = False) -> int | bool: ...
def str_to_bool(value: str, to_bool: bool = False) -> int | bool:
    """Return 1 (or True, with ``to_bool``) for y, yes, t, true, on, 1 and 0 for their opposites, in any case.

    Raises:
        ConfigError: If the text is none of them.
    """
    return _to_bool(value, "The value") if to_bool else int(_to_bool(value, "The value"))


def parse_flag_from_env(key: str, default: bool = False) -> bool:
    """Return the truth value of the variable ``key``, or ``default`` where it is unset or empty."""
    given = variable(key)
    return default if given is None or not given.strip() else _to_bool(given, f"`{key}`")


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Return the text of the variable ``key``, or ``default`` where it is unset."""
    given = variable(key)
    return str(default) if given is None else given


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Return the first of the variables ``env_keys`` that holds a number of at least 0, else ``default``."""
    for key in env_keys:
        given = variable(key)
        if given is None or not given.strip():
            continue
        try:
            number = int(given)
        except ValueError:
            raise ConfigError(f"`{key}` is `{given}`, but it must be {parsers.integer.accepts}.") from None
        if number >= 0:
            return number
    return default


def _to_bool(given: str, name: str) -> bool:
    try:
        return bool(parsers.boolean(str(given)))
    except ValueError:
        raise ConfigError(f"{name} is `{given}`, but it must be {parsers.boolean.accepts}.") from None
