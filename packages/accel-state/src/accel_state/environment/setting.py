"""One setting: the single line from which variable, flag, config key and reference page come."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from accel_state.environment.parsers import Parser
from accel_state.errors import ConfigError, did_you_mean


class Setting(NamedTuple):
    """A setting that can be given as an environment variable.

    ``name`` is what the code calls it. ``default`` is what reading gives where the variable is unset
    or empty. ``flag`` is the option of ``accel launch`` and ``config_key`` the place in the config file
    (``section.key`` inside a section), None where it has none.
    """

    name: str
    variable: str
    parse: Parser
    default: Any
    help: str
    flag: str | None = None
    config_key: str | None = None

    @property
    def choices(self) -> tuple[str, ...] | None:
        """The words that are accepted, None where the list is open."""
        return self.parse.choices

    def value_of(self, given: str | None, *, source: str | None = None) -> Any:
        """Return ``given`` parsed, or the default if it is None or blank.

        Args:
            given: The text as a person wrote it.
            source: What to call the place it came from in messages; the variable if omitted.

        Raises:
            ConfigError: If the text is not what the parser accepts.
        """
        if given is None or not given.strip():
            return self.default
        try:
            return self.parse(given)
        except (ValueError, KeyError):
            hint = did_you_mean(given, self.choices or ())
            raise ConfigError(
                f"`{source or self.variable}` is `{given}`, but it must be {self.parse.accepts}.{hint}"
            ) from None

    def text_of(self, value: Any) -> str:
        """Return ``value`` as the text that a variable carries; the opposite of `value_of`."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, (list, tuple)):
            return ",".join(str(part) for part in value)
        return str(value)


class Rule(Protocol):
    """Makes a setting whose names follow a rule, but for those that are given."""

    def __call__(
        self,
        short: str,
        parse: Parser,
        default: Any,
        description: str,
        *,
        variable: str = ...,
        flag: str | None = ...,
        config_key: str | None = ...,
    ) -> Setting: ...


def rule(name: str, variable: str, flag: str | None = None, config_key: str | None = None) -> Rule:
    """Return a function that makes settings named alike: ``{}`` in each pattern stands for the short name.

    In a variable it stands in upper case. A pattern of None leaves that out.
    """

    def make(short: str, parse: Parser, default: Any, description: str, **given: Any) -> Setting:
        names: dict[str, Any] = {
            "variable": variable.format(short.upper()),
            "flag": flag and flag.format(short),
            "config_key": config_key and config_key.format(short),
        }
        made = Setting(name.format(short), "", parse, default, description)
        return made._replace(**{**names, **given})

    return make
