"""Reading and writing the environment, by setting and by variable: the only module that uses `os.environ`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, overload

from accel_state.environment import parsers
from accel_state.environment.settings import SETTINGS, find_setting
from accel_state.errors import ConfigError

# Characters that the readers of files of variables cannot unquote.
_FORBIDDEN = (";", "\n", "<", ">", " ")


def snapshot() -> dict[str, str]:
    """Return a copy of the environment."""
    return dict(os.environ)


def variable(key: str) -> str | None:
    """Return the text of a variable that is not in the table of settings, None if it is unset."""
    return os.environ.get(key)


def read(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the value of the setting ``name``, or its default if it is unset or empty.

    Args:
        name: The setting's name in the table, such as ``mixed_precision``.
        environ: The variables to read; the environment of this process if omitted.

    Raises:
        UnknownNameError: If the table has no such setting.
        ConfigError: If the text is not what the setting accepts.
    """
    setting = SETTINGS.get(name) or find_setting(name)
    given = (os.environ if environ is None else environ).get(setting.variable)
    return setting.value_of(given) if given else setting.default


def is_set(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the setting ``name`` is set, and not empty."""
    variables = os.environ if environ is None else environ
    setting = SETTINGS.get(name) or find_setting(name)
    return bool(variables.get(setting.variable, "").strip())


def names_set(prefix: str) -> frozenset[str]:
    """Return the settings whose names begin with ``prefix`` and that are set, and not empty."""
    return frozenset(name for name in SETTINGS if name.startswith(prefix) and is_set(name))


def write(name: str, value: Any) -> None:
    """Set the setting ``name`` for this process and those it starts; None unsets it.

    Raises:
        ConfigError: If the setting does not accept the value; nothing is changed.
    """
    target = find_setting(name)
    if value is None:
        os.environ.pop(target.variable, None)
        return
    text = target.text_of(value)
    target.value_of(text)
    os.environ[target.variable] = text


def export(variables: Mapping[str, str | None]) -> None:
    """Set variables for this process and those it starts; None unsets one."""
    for key, value in variables.items():
        if value is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = value


def restore(earlier: Mapping[str, str]) -> None:
    """Restore the environment to the `snapshot` ``earlier``."""
    for key in os.environ.keys() - earlier.keys():
        del os.environ[key]
    os.environ.update({key: value for key, value in earlier.items() if os.environ.get(key) != value})


@contextmanager
def recorded_reads(names: Container[str]) -> Iterator[set[str]]:
    """Yield a set that gets those of ``names`` whose variables are read within."""
    reads: set[str] = set()

    class Recording(os._Environ):  # type: ignore[type-arg]
        def __getitem__(self, key: str) -> str:
            if key in names:
                reads.add(key)
            return str(super().__getitem__(key))

    before = type(os.environ)
    os.environ.__class__ = Recording
    try:
        yield reads
    finally:
        os.environ.__class__ = before


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
    """Return the truth value of the variable ``key``, or ``default`` if it is unset or empty."""
    given = variable(key)
    return default if given is None or not given.strip() else _to_bool(given, f"`{key}`")


def parse_choice_from_env(key: str, default: str = "no") -> str:
    """Return the text of the variable ``key``, or ``default`` if it is unset."""
    given = variable(key)
    return str(default) if given is None else given


def get_int_from_env(env_keys: Iterable[str], default: int) -> int:
    """Return the first of the variables ``env_keys`` that is a number of at least 0, else ``default``.

    Raises:
        ConfigError: If a variable before it is not an integer.
    """
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

    The readers of such files have no quoting, so a variable that is empty or contains a blank, a line break or
    one of ``; < >`` is left out, with a warning that names it.
    """
    lines: list[str] = []
    for key, value in current_env.items():
        if key and value and not any(character in key + value for character in _FORBIDDEN):
            lines.append(f"{key}={value}\n")
        else:
            warnings.warn(
                f"The variable `{key}` is not passed on: its value `{value}` is empty or needs quoting. "
                "Set it on each machine.",
                stacklevel=2,
            )
    return lines


def env_var_path_add(env_var_name: str, path_to_add: str) -> str:
    """Return the paths in the variable ``env_var_name`` with ``path_to_add`` at the end, each once.

    The environment is unchanged.
    """
    paths = [path for path in (variable(env_var_name) or "").split(":") if path]
    return ":".join(dict.fromkeys([*paths, str(path_to_add)]))
