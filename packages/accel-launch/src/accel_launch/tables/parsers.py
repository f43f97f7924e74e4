"""Kinds of text that only settings of a launch have; each stays the text it was."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from accel_state.environment.parsers import Parser

_TEE = re.compile(r"[0-3]|\d:[0-3](,\d:[0-3])*")
_PAIRS = re.compile(r"[^=,]+=[^,]+(,[^=,]+=[^,]+)*")
# Names and quantities as Kubernetes takes them.
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kMGTPE]|[KMGTPE]i)?")
_REFERENCE = r"[A-Za-z_]\w*=[a-z0-9][-.a-z0-9]*:[-._a-zA-Z0-9]+"
_REFERENCES = re.compile(rf"{_REFERENCE}(,{_REFERENCE})*")


def _matching(pattern: re.Pattern[str]) -> Callable[[str], str]:
    def convert(given: str) -> str:
        if pattern.fullmatch(given) is None:
            raise ValueError(given)
        return given

    return convert


def _to_shell_words(given: str) -> str:
    shlex.split(given)
    return given


tee = Parser("0, 1, 2 or 3, or such a number for each local rank, as in `0:3,1:1`", _matching(_TEE))
pairs = Parser("`KEY=VALUE`, or several of them with commas between", _matching(_PAIRS))
shell_words = Parser("words as for a shell, with each quote closed", _to_shell_words)
dns_label = Parser("lower-case letters, digits and dashes, at most 63", _matching(_LABEL))
quantity = Parser("a quantity as Kubernetes writes it, such as `4`, `500m` or `64Gi`", _matching(_QUANTITY))
secret_references = Parser(
    "`VARIABLE=SECRET:KEY`, or several of them with commas between", _matching(_REFERENCES)
)
