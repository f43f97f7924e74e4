"""Variables that are not in the table of settings: read the way users' scripts know it, and written as text."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Literal, overload

from accel_state.environment import parsers
from accel_state.environment.door import variable
from accel_state.errors import ConfigError

# What the readers of such files have no quoting for.
_FORBIDDEN = (";", "\n", "<", ">", " ")


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


def convert_dict_to_env_variables(current_env: Mapping[str, str]) -> list[str]:
    """Return one line ``KEY=value\\n`` per variable, for files such as DeepSpeed's ``.deepspeed_env``.

    The readers of such files have no quoting, so a variable that is empty or holds a blank, a line break or
    one of ``; < >`` cannot be passed on; it is left out with a warning that names it.
    """
    lines: list[str] = []
    for key, value in current_env.items():
        if key and value and not any(character in key + value for character in _FORBIDDEN):
            lines.append(f"{key}={value}\n")
        else:
            warnings.warn(
                f"The variable `{key}` is not passed on: its value `{value}` is empty or needs quoting.",
                stacklevel=2,
            )
    return lines


def env_var_path_add(env_var_name: str, path_to_add: str) -> str:
    """Return the paths in the variable ``env_var_name`` with ``path_to_add`` at the end, each once.

    The environment itself is left alone.
    """
    paths = [path for path in (variable(env_var_name) or "").split(":") if path]
    return ":".join(dict.fromkeys([*paths, str(path_to_add)]))
