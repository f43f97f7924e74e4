"""Run a case's variants in turn, each in a separate process, round after round."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

from tools.bench.case import Case

LIMIT_S = 300


@dataclass(frozen=True)
class Measurement:
    """All numbers of one variant."""

    variant: str
    values: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        if len(self.values) < 2 or self.median == 0:
            return 0.0
        low, _, high = statistics.quantiles(self.values, n=4, method="inclusive")
        return (high - low) / 2 / self.median


def run_variant(source: str) -> float:
    """Run ``source`` in a fresh Python; return the number it prints last, or the seconds it took."""
    # Bytecode may be written: pip compiled what it installed, ours would be compiled again in every run.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=LIMIT_S, check=False, env=environ
    )  # fmt: skip
    duration_s = time.perf_counter() - begun
    if done.returncode != 0:
        raise RuntimeError(f"A variant failed ({done.returncode}):\n{source}\n{done.stderr}")
    printed = done.stdout.strip().splitlines()
    return float(printed[-1]) if printed else duration_s


def measure(case: Case, *, num_rounds: int) -> list[Measurement]:
    """Return one measurement per variant. The order turns each round: no variant always goes first."""
    if case.prepare:
        run_variant(case.prepare)
    measurements = {name: Measurement(name) for name in case.variants}
    names = list(case.variants)
    for name in names:
        run_variant(case.variants[name])  # one unmeasured run: files in the cache, bytecode written
    for number in range(num_rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            measurements[name].values.append(run_variant(case.variants[name]))
    return list(measurements.values())


def as_table(case: Case, measurements: list[Measurement]) -> str:
    """Return medians, spread and the ratio to the baseline as text."""
    base = next(each.median for each in measurements if each.variant == case.baseline)
    lines = [f"{case.title} ({case.unit}; {len(measurements[0].values)} rounds)"]
    lines.append(f"  {'variant':<14}{'median':>12}{'spread':>9}{'/ ' + case.baseline:>16}")
    for each in measurements:
        lines.append(
            f"  {each.variant:<14}{each.median:>12.4g}{each.spread:>9.1%}{each.median / base:>16.3f}"
        )
    return "\n".join(lines)
