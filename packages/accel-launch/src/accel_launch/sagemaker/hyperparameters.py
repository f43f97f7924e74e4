"""A script's arguments as SageMaker's hyperparameters: names with one value each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite

from accel_state.errors import ConfigError

Hyperparameter = str | int | float | bool

_NAME = re.compile(r"--?[A-Za-z_][\w.-]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_BOOLEANS = {"True": True, "False": False}


def hyperparameters_of(arguments: Sequence[str]) -> dict[str, Hyperparameter]:
    """Return ``--epochs 3 --lr=5e-5 --fast False`` as ``{"epochs": 3, "lr": 5e-05, "fast": False}``.

    On the machine the script gets them as ``--epochs 3`` again. A number becomes one only if the script then
    reads the same: ``1.10`` and ``007`` stay texts.

    Raises:
        ConfigError: If an argument has no name, no value, several, or stands twice.
    """
    found: dict[str, Hyperparameter] = {}
    waiting = list(arguments)
    while waiting:
        word, is_whole, value = waiting.pop(0).partition("=")
        if _NAME.fullmatch(word) is None:
            raise ConfigError(
                f"The argument `{word}` has no name, or is a second value of the one before it. SageMaker hands "
                "arguments to a script as names with one value each, such as `--epochs 3`."
            )
        if not is_whole:
            if not waiting or _NAME.fullmatch(waiting[0].partition("=")[0]):
                raise ConfigError(
                    f"The argument `{word}` has no value, but SageMaker knows no switches. Give it one, such as "
                    f"`{word} True`, which the script has to read as a text."
                )
            value = waiting.pop(0)
        name = word.lstrip("-")
        if name in found:
            raise ConfigError(
                f"The argument `{word}` stands twice, but SageMaker hands over one value for each name."
            )
        found[name] = _typed(value)
    return found


def _typed(text: str) -> Hyperparameter:
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _NUMBER.fullmatch(text) is None:
        return text
    number = float(text) if _is_fraction(text) else int(text)
    # With an exponent there are many ways to write the same number, and a script reads it as nothing else.
    is_same = str(number) == text or "e" in text.lower()
    return number if is_same and isfinite(number) else text


def _is_fraction(text: str) -> bool:
    return not text.lstrip("-").isdigit()
