"""One setting: the single line from which variable, flag, config key and reference page come."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from accel_state.environment.parsers import Parser
from accel_state.errors import ConfigError, did_you_mean


class Setting(NamedTuple):
    """A setting that can be given as an environment variable, a flag of ``accel launch``, or a key of the config file.

    Attributes:
        name: What the code calls it.
        variable: Its environment variable; empty for one that only the launcher has use for.
        parse: Makes a value of its text.
        default: What reading gives where it is unset or empty.
        help: What it does, in a sentence.
        flag: Its option of ``accel launch``, None where it has none.
        config_key: Its place in the config file (``section.key`` inside a section), None where it has none.
        metavar: What stands for the value in the help; that of the parser, or made of the name, if omitted.
        is_switch: Whether the flag takes no value.
        other_flags: Further spellings of the flag.
        separator: What joins the texts of a flag that may be given several times; None for one that may not.
        launch_default: What the help calls the default where a launch decides it.
        unset_values: Values of the config key that leave the choice to the next in line.
        needs: Conditions without which a launch does not act on it, by their names in the launcher.
        not_on: Places, by their names in the launcher, where a launch does not act on it.
        is_secret: Whether its value must not be shown.
        is_common: Whether it is among the few that the shortest help shows.
    """

    name: str
    variable: str
    parse: Parser
    default: Any
    help: str
    flag: str | None = None
    config_key: str | None = None
    metavar: str | None = None
    is_switch: bool = False
    other_flags: tuple[str, ...] = ()
    separator: str | None = None
    launch_default: str | None = None
    unset_values: tuple[Any, ...] = ()
    needs: tuple[str, ...] = ()
    not_on: tuple[str, ...] = ()
    is_secret: bool = False
    is_common: bool = False

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
            return (self.separator or ",").join(str(part) for part in value)
        return str(value)


class Rule(Protocol):
    """Makes a setting whose names follow a rule, but for the columns that are given."""

    def __call__(
        self, short: str, parse: Parser, default: Any, description: str, **columns: Any
    ) -> Setting: ...


def rule(
    name: str, variable: str, flag: str | None = None, config_key: str | None = None, **shared: Any
) -> Rule:
    """Return a function that makes settings named alike: ``{}`` in each pattern stands for the short name.

    In a variable it stands in upper case. A pattern of None leaves that out. ``shared`` are further columns that all
    of them have.
    """

    def make(short: str, parse: Parser, default: Any, description: str, **columns: Any) -> Setting:
        names: dict[str, Any] = {
            "variable": variable.format(short.upper()),
            "flag": flag and flag.format(short),
            "config_key": config_key and config_key.format(short),
        }
        made = Setting(name.format(short), "", parse, default, description)
        return made._replace(**{**names, **shared, **columns})

    return make
