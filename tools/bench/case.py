"""What a file in ``tools/bench/cases`` offers: one object named ``case``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One thing to measure, in several variants.

    Args:
        title: What is measured, one line.
        unit: Of the number that each variant prints.
        variants: Python source per variant, in the order of the table. Each runs in a process of its own and
            prints one number as its last line; or nothing, and then the whole process is timed in seconds.
        baseline: The variant to which the others are compared.
        prepare: Source to run once before the rounds, e.g. to fill caches.
        obstacle: Source to run first; what it prints is why the case cannot be measured on this machine.
    """

    title: str
    unit: str
    variants: Mapping[str, str]
    baseline: str
    prepare: str = ""
    obstacle: str = ""
