"""Asking a person: with menus on a terminal, with plain lines from a pipe."""

from __future__ import annotations

import string
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from accel_launch.messages import show
from accel_state.errors import ConfigError, did_you_mean


class Asker:
    """Prints a question and reads a line, until there is an answer; an empty line takes the default."""

    def text(self, question: str, *, default: str) -> str:
        """Return the line that was typed."""
        return self._line(f"{question} [{default}]: " if default else f"{question}: ", question) or default

    def choice(self, question: str, labels: Sequence[str], *, default: int) -> int:
        """Return the place of the label that was chosen."""
        self.say(question)
        for place, label in enumerate(labels):
            self.say(f"  {place}  {label}")
        while True:
            given = self._line(f"Name or number [{labels[default]}]: ", question) or labels[default]
            chosen = place_of(given, labels)
            if chosen is not None:
                return chosen
            self.say(f"`{given}` is none of these.{did_you_mean(given, labels)}")

    def say(self, line: str) -> None:
        """Show a line, such as why an answer was not taken."""
        show(line)

    def _line(self, shown: str, question: str) -> str:
        try:
            return input(shown).strip()
        except (EOFError, RuntimeError):  # at its end, or closed from the start
            raise ConfigError(
                f"The input ended before there was an answer to: {question} Run `accel config` in a terminal, or "
                "`accel config default`, which asks nothing."
            ) from None


class MenuAsker(Asker):
    """Asks on a terminal: choices are a menu, through which arrow keys and the key before each label move."""

    def choice(self, question: str, labels: Sequence[str], *, default: int) -> int:
        import questionary

        keys = string.digits + string.ascii_lowercase
        choices = [
            questionary.Choice(label, value=place, shortcut_key=keys[place])
            for place, label in enumerate(labels)
        ]
        menu = questionary.select(
            question, choices, default=choices[default], pointer=">", use_shortcuts=True, use_jk_keys=False
        )
        ends: Any = menu.application.key_bindings
        ends.add("c-d")(lambda event: event.app.exit(exception=KeyboardInterrupt))  # as for a line of text
        place: int = menu.unsafe_ask()
        return place


def make_asker(environ: Mapping[str, str]) -> Asker:
    """Return an asker with menus where there is a terminal that can draw them, else one with plain lines."""
    is_terminal = all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
    return MenuAsker() if is_terminal and environ.get("TERM", "dumb") != "dumb" else Asker()


def place_of(given: str, labels: Sequence[str]) -> int | None:
    """Return which label is meant: by its words in any case, else by its number."""
    words = [label.lower() for label in labels]
    if given.lower() in words:
        return words.index(given.lower())
    if given.isdecimal() and int(given) < len(labels):
        return int(given)
    return None
