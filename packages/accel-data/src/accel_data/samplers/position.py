"""A place in an epoch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Position:
    """How much of an epoch all ranks together have read: in samples, and in batches of the user's sampler."""

    samples: int = 0
    batches: int = 0


START = Position()
