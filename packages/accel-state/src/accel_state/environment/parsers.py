"""Parsers of the text of a setting, with a description of what each accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

TRUE_WORDS = frozenset({"y", "yes", "t", "true", "on", "1"})
FALSE_WORDS = frozenset({"n", "no", "f", "false", "off", "0"})


class Parser(NamedTuple):
    """Converts text to a value; raises `ValueError` (or `KeyError`) on text that it does not accept.

    ``accepts`` completes the sentence "it must be …"; ``choices`` lists the words if the list is closed;
    ``metavar`` is the placeholder of the value in the help of a command.
    """

    accepts: str
    convert: Callable[[str], Any]
    choices: tuple[str, ...] | None = None
    metavar: str | None = None

    def __call__(self, text: str) -> Any:
        return self.convert(text)


def _to_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(text)


def _to_port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError(text)
    return port


def _at_least(minimum: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        number = int(text)
        if number < minimum:
            raise ValueError(text)
        return number

    return convert


def _to_duration(text: str) -> float:
    seconds = float(text)
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(text)
    return seconds


def _to_host(text: str) -> str:
    name = text.strip()
    if any(letter.isspace() or not letter.isprintable() for letter in name):
        raise ValueError(text)
    return name


def _to_names(text: str) -> tuple[str, ...]:
    return tuple(name for name in (part.strip() for part in text.split(",")) if name)


boolean = Parser("true or false (or yes/no, on/off, 1/0)", _to_bool, metavar="{true,false}")
integer = Parser("a whole number", int)
count = Parser("a whole number of at least 1", _at_least(1), metavar="N")
index = Parser("a whole number of at least 0", _at_least(0), metavar="N")
number = Parser("a number", float, metavar="X")
duration = Parser("a number of seconds of at least 0", _to_duration, metavar="SECONDS")
port = Parser("a port number between 0 and 65535", _to_port, metavar="PORT")
text = Parser("any text", str)
host = Parser("the name or the address of a host", _to_host)
names = Parser("names separated by commas", _to_names, metavar="NAMES")


def choice(*words: str, aliases: Mapping[str, str] | None = None) -> Parser:
    """Accept one of ``words`` in any case, or an alias of one; the value is the word as spelled here."""
    known = {word.lower(): word for word in words} | {
        key.lower(): word for key, word in (aliases or {}).items()
    }
    return Parser(f"one of: {', '.join(words)}", lambda given: known[given.strip().lower()], words)


def word_or_installed(group: str, *words: str) -> Parser:
    """Accept one of ``words`` in any case, or the name of an entry point of ``group``."""
    known = {word.lower(): word for word in words}

    def convert(given: str) -> str:
        name = given.strip().lower()
        if name in known:
            return known[name]
        from accel_state.registry import entry_points

        if all(entry_point.name != name for entry_point in entry_points(group)):
            raise ValueError(given)
        return name

    return Parser(f"one of: {', '.join(words)}, or a name that an installed package adds", convert, words)


def digit(*numbers: int) -> Parser:
    """Accept one of ``numbers``; the value is the number."""
    words = tuple(str(number) for number in numbers)
    known = dict(zip(words, numbers, strict=True))
    return Parser(f"one of: {', '.join(words)}", lambda given: known[given.strip()], words)


def numbered(*words: str) -> Parser:
    """Accept one of ``words``, or its place in the list counted from 1, as the questionnaire writes it."""
    return choice(*words, aliases={str(place): word for place, word in enumerate(words, start=1)})


def either(first: Parser, second: Parser) -> Parser:
    """Accept what ``first`` accepts, else what ``second`` accepts."""

    def convert(given: str) -> Any:
        try:
            return first(given)
        except (ValueError, KeyError):
            return second(given)

    return Parser(f"{first.accepts}, or {second.accepts}", convert)


def unless(word: str, parser: Parser, value: Any) -> Parser:
    """Accept ``word`` as ``value``, and otherwise what ``parser`` accepts."""

    def convert(given: str) -> Any:
        return value if given.strip().lower() == word else parser(given)

    return Parser(f"{parser.accepts}, or `{word}`", convert, metavar=parser.metavar)
