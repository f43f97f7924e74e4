"""What a SageMaker job gets: its script's arguments as hyperparameters, its channels, the metrics it is watched for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from accel_launch.config.file import read_text_file
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
        ConfigError: If an argument has no name, no value, several values, or is given twice.
    """
    found: dict[str, Hyperparameter] = {}
    waiting = list(arguments)
    while waiting:
        word, is_whole, value = waiting.pop(0).partition("=")
        if _NAME.fullmatch(word) is None:
            raise ConfigError(
                f"The argument `{word}` has no name, or is a second value of the one before it. SageMaker hands "
                "arguments to a script as names with one value each, such as `--epochs 3`. "
                "Name it."
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
                f"The argument `{word}` is given twice, but SageMaker passes one value for each name. "
                "Give it once."
            )
        found[name] = _typed(value)
    return found


def _typed(text: str) -> Hyperparameter:
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _NUMBER.fullmatch(text) is None:
        return text
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    # With an exponent there are many ways to write the same number, and a script reads it as nothing else.
    is_same = str(number) == text or "e" in text.lower()
    return number if is_same and isfinite(number) else text


def pairs_of(path: Path, what: str) -> list[tuple[str, str]]:
    """Return the pairs in lines ``NAME<tab>VALUE``; a heading above them, which has plain words, is left out.

    Args:
        path: The file.
        what: What the values are, for errors.

    Raises:
        ConfigError: If the file cannot be read, or a line is no pair.
    """
    lines = read_text_file(path, what=f"The file `{path}`, with {what},").splitlines()
    pairs: list[tuple[str, str]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        name, _, value = (part.strip() for part in line.partition("\t"))
        if not name or not value:
            raise ConfigError(
                f"Line {number} of `{path}` must be two columns with a tab between them, got `{line}`."
            )
        pairs.append((name, value))
    return pairs[1:] if pairs and re.fullmatch(r"[A-Za-z_ ]+", pairs[0][1]) else pairs
