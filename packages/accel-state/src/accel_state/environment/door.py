"""Reading and writing the environment: the only module that uses `os.environ`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from accel_state.environment.settings import find_setting

_IS_IGNORED = ContextVar("settings are ignored", default=False)


def snapshot() -> dict[str, str]:
    """Return a copy of the environment as it is now."""
    return dict(os.environ)


def variable(key: str) -> str | None:
    """Return the text of a variable that is not in the table of settings, None where it is unset."""
    return os.environ.get(key)


@contextmanager
def ignored() -> Iterator[None]:
    """Let `read` and `is_set` find no setting in the block, in this thread; the environment is not touched."""
    token = _IS_IGNORED.set(True)
    try:
        yield
    finally:
        _IS_IGNORED.reset(token)


def read(name: str, environ: Mapping[str, str] | None = None) -> Any:
    """Return the value of the setting called ``name``, or its default where it is unset or empty.

    Args:
        name: The setting's name in the table, such as ``mixed_precision``.
        environ: Where to look; the environment of this process if omitted.

    Raises:
        UnknownNameError: If the table has no such setting.
        ConfigError: If the text is not what the setting accepts.
    """
    found = find_setting(name)
    return found.value_of(_looked_at(environ).get(found.variable))


def is_set(name: str, environ: Mapping[str, str] | None = None) -> bool:
    """Whether the setting called ``name`` is given, and not empty."""
    return bool(_looked_at(environ).get(find_setting(name).variable, "").strip())


def _looked_at(environ: Mapping[str, str] | None) -> Mapping[str, str]:
    if environ is not None:
        return environ
    return {} if _IS_IGNORED.get() else os.environ


def write(name: str, value: Any) -> None:
    """Set the setting called ``name`` for this process and those it starts; None unsets it.

    Raises:
        ConfigError: If reading it back would refuse the value; nothing is changed then.
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
    """Make the environment what it was when the `snapshot` ``earlier`` was taken."""
    for key in os.environ.keys() - earlier.keys():
        del os.environ[key]
    os.environ.update({key: value for key, value in earlier.items() if os.environ.get(key) != value})
