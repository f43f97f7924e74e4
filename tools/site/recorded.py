"""Recorded outputs of examples: ``docs/examples/output/NAME.txt`` holds command lines and what each printed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PROMPT = "$ "
NOISE = ("[Gloo]", "DeepSpeed deepspeed.ops.")
"""How lines begin in which libraries tell of themselves; they are not recorded."""
NUMBER = re.compile(r"[-+]?\d[\d,_]*(\.\d+)?([eE][-+]?\d+)?%?|\b(nan|inf)\b")
PATH = re.compile(r"\S*/\S*")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a recording.

    Args:
        command: As one types it at the root of a checkout.
        output: What it printed on standard output.
        code: Its exit code.
    """

    command: str
    output: str
    code: int = 0


def as_text(steps: Iterable[Step]) -> str:
    """Return the recording as it is shown: an exit code only where it is not 0."""
    parts = []
    for step in steps:
        ending = f"[exit code {step.code}]\n" if step.code else ""
        parts.append(f"{PROMPT}{step.command}\n{step.output.rstrip()}\n{ending}")
    return "\n".join(parts)


def read_steps(file: Path) -> list[Step]:
    """Return the steps of a recording.

    Raises:
        ValueError: If the file does not begin with a command.
    """
    text = file.read_text(encoding="utf-8")
    if not text.startswith(PROMPT):
        raise ValueError(f"`{file}` does not begin with `{PROMPT}` and a command. {advice(file.stem)}")
    steps = []
    for part in re.split(rf"^{re.escape(PROMPT)}", text, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        found = re.search(r"\[exit code (\d+)\]\n", output)
        code = int(found[1]) if found else 0
        steps.append(Step(command, output[: found.start()] if found else output, code))
    return steps


def advice(name: str) -> str:
    """Return how a recording is made anew."""
    return f"Run `python -m tools.site.record {name}`."


def shapes(text: str) -> set[str]:
    """Return the different lines of an output without noise, numbers, paths and widths of columns."""
    told = (line for line in text.splitlines() if not line.startswith(NOISE))
    lines = (NUMBER.sub("#", PATH.sub("PATH", line)) for line in told)
    return {" ".join(line.split()) for line in lines if line.strip()}
