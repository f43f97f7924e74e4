"""Run a case's variants in turn, each in a separate process, round after round."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

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
    begun = time.perf_counter()
    printed = _printed_by(source)
    duration_s = time.perf_counter() - begun
    return float(printed[-1]) if printed else duration_s


def obstacle_to(case: Case) -> str:
    """Return why ``case`` cannot be measured on this machine, ``""`` if it can."""
    return " ".join(_printed_by(case.obstacle)) if case.obstacle else ""


def _printed_by(source: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=with_bytecode(os.environ),
    )
    if done.returncode != 0:
        raise RuntimeError(f"A variant failed ({done.returncode}):\n{source}\n{done.stderr}")
    return done.stdout.strip().splitlines()


def with_bytecode(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` without what keeps Python from writing bytecode.

    Packages that pip copied were compiled when they were installed; ours, imported from the checkout, would
    be compiled again in every run, which takes longer than the rest of their import.
    """
    return {name: value for name, value in environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


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


def as_data(case: Case, measurements: list[Measurement]) -> dict[str, object]:
    """Return everything as plain data for a JSON file."""
    results = [{**asdict(each), "median": each.median, "spread": each.spread} for each in measurements]
    return {"title": case.title, "unit": case.unit, "baseline": case.baseline, "results": results}
