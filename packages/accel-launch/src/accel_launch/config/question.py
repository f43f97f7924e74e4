"""One question of the questionnaire, as data, and how an answer becomes a value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from accel_launch.config.prompts import Asker
from accel_launch.options import OPTIONS
from accel_state.environment import Setting
from accel_state.environment.parsers import Parser, boolean
from accel_state.environment.parsers import text as any_text

Answers = Mapping[str, Any]
_SETTINGS = {setting.name: setting for setting in OPTIONS}
_MOST_CHOICES = 20


def always(answers: Answers) -> bool:
    """Ask whatever was answered before."""
    return True


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, where the answer goes, and when it matters.

    ``key`` is that of the config file; one that starts with ``?`` only steers the questions after it. ``labels`` are
    what the choices are called where that differs from their values. ``default`` may be a function of the answers so
    far.
    """

    key: str
    text: str
    parse: Parser = any_text
    default: Any = ""
    when: Callable[[Answers], bool] = always
    labels: Mapping[str, str] | None = None

    def choices(self) -> tuple[str, ...] | None:
        """Return the values to choose among, None where a line is typed."""
        if self.labels is not None:
            return tuple(self.labels)
        words = self.parse.choices
        return words if words is not None and len(words) <= _MOST_CHOICES else None

    def ask(self, asker: Asker, answers: Answers) -> Any:
        """Ask until there is an answer that can be used, and return its value."""
        default = self.default(answers) if callable(self.default) else self.default
        choices = self.choices()
        if choices is not None:
            shown = [self.labels[word] if self.labels else word for word in choices]
            place = asker.choice(self.text, shown, default=choices.index(str(default)))
            return self.parse(choices[place])
        return self._ask_for_text(asker, _shown(default))

    def _ask_for_text(self, asker: Asker, default: str) -> Any:
        question = f"{self.text} [yes/no]" if self.parse is boolean else self.text
        while True:
            given = asker.text(question, default=default)
            if not given and default == "" and self.parse is any_text:
                return ""
            try:
                return self.parse(given)
            except (ValueError, KeyError):
                asker.say(f"`{given}` cannot be used: it must be {self.parse.accepts}.")


def of_setting(
    name: str,
    text: str | None = None,
    *,
    default: Any = None,
    when: Callable[[Answers], bool] = always,
    parse: Parser | None = None,
) -> Question:
    """Return the question for a setting: its words, what it accepts and its default come from the table."""
    setting: Setting = _SETTINGS[name]
    assert setting.config_key is not None
    fallback = setting.default if setting.default is not None else ""
    return Question(
        setting.config_key,
        text or setting.help.removesuffix("."),
        parse or setting.parse,
        fallback if default is None else default,
        when,
    )


def yes_no(
    key: str, text: str, *, default: bool = False, when: Callable[[Answers], bool] = always
) -> Question:
    """Return a question that is answered with yes or no."""
    return Question(key, text, boolean, default, when)


def answered(key: str, *values: Any) -> Callable[[Answers], bool]:
    """Return a condition: the question ``key`` was asked, and answered with one of ``values`` (yes if none)."""
    return lambda answers: answers.get(key) in (values or (True,))


def both(*conditions: Callable[[Answers], bool]) -> Callable[[Answers], bool]:
    """Return a condition that holds where all of ``conditions`` do."""
    return lambda answers: all(condition(answers) for condition in conditions)


def _shown(default: Any) -> str:
    if isinstance(default, bool):
        return "yes" if default else "no"
    if isinstance(default, (tuple, list)):
        return ",".join(str(part) for part in default)
    return str(default)
