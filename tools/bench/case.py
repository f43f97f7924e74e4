"""The interface of a file in ``tools/bench/cases``: one object named ``case``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One thing to measure, in several variants.

    Args:
        title: The measurement, in one line.
        unit: Of the number that each variant prints.
        variants: Python source per variant, in the order of the table. Each runs in a separate process and
            prints one number as its last line; or nothing, and then the complete process is timed in seconds.
        baseline: The variant that other variants are compared with.
        prepare: Source to run once before the rounds, e.g. to fill caches.
    """

    title: str
    unit: str
    variants: Mapping[str, str]
    baseline: str
    prepare: str = ""
