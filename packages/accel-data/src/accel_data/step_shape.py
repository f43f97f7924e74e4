"""What all ranks know about one step that they take together."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepShape:
    """The rows that each rank receives in one step, and how many of them are samples of the data set.

    Args:
        rows: Rows of each rank; 0 for a rank that has no batch in this step.
        real: Of those, the leading rows that are read for the first time in this epoch. The rest repeat
            others.
    """

    rows: tuple[int, ...]
    real: tuple[int, ...]

    @property
    def num_real(self) -> int:
        """Samples of the data set that this step brings, over all ranks."""
        return sum(self.real)

    @property
    def is_padded(self) -> bool:
        """Whether some row repeats another."""
        return self.rows != self.real

    @property
    def is_even(self) -> bool:
        """Whether all ranks have the same number of rows."""
        return min(self.rows) == max(self.rows)

    @property
    def is_plain(self) -> bool:
        """Whether gathering needs no care at all: every rank has as many rows as the others, all of them
        real.
        """
        return self.is_even and not self.is_padded


def full_step(rows: int, num_ranks: int) -> StepShape:
    """Return the shape of a step in which every rank has ``rows`` new samples."""
    return StepShape((rows,) * num_ranks, (rows,) * num_ranks)
