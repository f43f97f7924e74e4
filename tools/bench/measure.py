"""Run a case's variants in turn, each in a separate process, round after round."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

LIMIT_S = 300


@dataclass(frozen=True)
class Case:
    """One thing to measure, in several variants.

    Args:
        title: The measurement, in one line.
        unit: Of the number that each variant prints.
        variants: Python source per variant; others are compared with the first. Each runs in a separate process and
            prints one number as its last line.
        prepare: Source to run once before the rounds, e.g. to fill caches.
    """

    title: str
    unit: str
    variants: Mapping[str, str]
    prepare: str = ""


def run_variant(source: str) -> float:
    """Run ``source`` in a fresh Python and return the number it prints last."""
    # Bytecode may be written: pip compiled what it installed, ours would be compiled again in every run.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ)
    if done.returncode != 0:
        raise RuntimeError(f"A variant failed ({done.returncode}):\n{source}\n{done.stderr}")
    return float(done.stdout.strip().splitlines()[-1])


def measure(case: Case, *, num_rounds: int) -> dict[str, list[float]]:
    """Return the numbers of each variant. The order turns each round: no variant always goes first."""
    if case.prepare:
        run_variant(case.prepare)
    names = list(case.variants)
    for name in names:
        run_variant(case.variants[name])  # one unmeasured run: files in the cache, bytecode written
    numbers: dict[str, list[float]] = {name: [] for name in names}
    for number in range(num_rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            numbers[name].append(run_variant(case.variants[name]))
    return numbers


def as_table(case: Case, numbers: Mapping[str, list[float]]) -> str:
    """Return the median, the lowest and the highest number of each variant, and its ratio to the first, as text."""
    medians = {name: statistics.median(values) for name, values in numbers.items()}
    baseline, base = next(iter(medians.items()))
    lines = [f"{case.title} ({case.unit}; {len(numbers[baseline])} rounds)"]
    for name, median in medians.items():
        low, high = min(numbers[name]), max(numbers[name])
        lines.append(
            f"  {name:<42} {median:.4g} ({low:.4g} to {high:.4g}), {median / base:.3f} of {baseline}"
        )
    return "\n".join(lines)
