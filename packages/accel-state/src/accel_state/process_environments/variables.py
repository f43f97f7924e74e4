"""Numbers in a mapping of variables, with errors that name the variable."""

from __future__ import annotations

from collections.abc import Mapping

from accel_state.errors import ConfigError


def is_set(environ: Mapping[str, str], variable: str) -> bool:
    """Whether ``variable`` is there and not blank."""
    return bool(environ.get(variable, "").strip())


def optional_int(environ: Mapping[str, str], variable: str) -> int | None:
    """Return the whole number in ``variable``, None where it is unset."""
    if not is_set(environ, variable):
        return None
    try:
        return int(environ[variable])
    except ValueError:
        raise ConfigError(f"`{variable}` is `{environ[variable]}`, but it must be a whole number.") from None


def required_int(environ: Mapping[str, str], variable: str, *, launcher: str, because: str) -> int:
    """Return the whole number in ``variable``; where it is unset, say which other variable asks for it."""
    value = optional_int(environ, variable)
    if value is None:
        raise ConfigError(
            f"`{variable}` is not set, although `{because}` is. {launcher} sets both; set the missing one, "
            f"or unset `{because}` to run a single process."
        )
    return value
