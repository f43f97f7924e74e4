"""The arithmetic of sharding: which rank reads which position of the epoch's order at which step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from accel_data.step import Position, StepInfo, StepShape, full_step, shape_of_step, split_step


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Distributes positions ``[start, num_samples)`` of an epoch to the ranks in steps of ``rows * num_ranks``.

    At step ``i`` rank ``r`` reads ``rows`` positions from ``start + (i * num_ranks + r) * rows``, so what the
    ranks read in one step, one after the other, is a stretch of the epoch in order. Splitting a batch
    of ``rows * num_ranks`` and distributing full batches of ``rows`` are the same thing.

    Args:
        num_samples: Length of the epoch.
        rows: Rows of one rank in one step.
        num_ranks: Ranks that share the epoch.
        rank: The rank this plan is asked for.
        even: Complete the last step with positions from the beginning of the epoch.
        drop_last: Leave out a last step that is not full.
        start: Position of the first sample, larger than 0 when an epoch is resumed.
    """

    num_samples: int
    rows: int
    num_ranks: int
    rank: int
    even: bool
    drop_last: bool
    start: int = 0

    @property
    def global_rows(self) -> int:
        """Positions that one full step covers."""
        return self.rows * self.num_ranks

    @property
    def remaining(self) -> int:
        """Samples from ``start`` to the end of the epoch."""
        return max(0, self.num_samples - self.start)

    @property
    def num_steps(self) -> int:
        """Steps in which at least one rank has a batch."""
        if self.drop_last:
            return self.remaining // self.global_rows
        return -(-self.remaining // self.global_rows)

    @property
    def num_local_steps(self) -> int:
        """Steps in which this rank has a batch: the first ones."""
        return self._num_steps_of(self.rank)

    @property
    def num_common_steps(self) -> int:
        """Steps in which every rank has a batch: those of the last one."""
        return self._num_steps_of(self.num_ranks - 1)

    def _num_steps_of(self, rank: int) -> int:
        if self.even or self.drop_last:
            return self.num_steps
        left = self.remaining - rank * self.rows
        return max(0, -(-left // self.global_rows))

    @property
    def remainder(self) -> int:
        """Samples in the last step if it is not full, else 0."""
        return 0 if self.drop_last else self.remaining % self.global_rows

    def consumed(self, steps: int) -> int:
        """Return the position after ``steps`` steps."""
        return min(self.start + steps * self.global_rows, max(self.start, self.num_samples))

    def indices(self, order: Sequence[int], step: int) -> list[int]:
        """Return what this rank reads at ``step`` of the epoch whose order is ``order``."""
        low = self.start + (step * self.num_ranks + self.rank) * self.rows
        high = low + self.rows
        if high <= self.num_samples:
            return list(order[low:high])
        pieces, _ = split_step(
            order[self.start + step * self.global_rows : self.num_samples],
            rows=self.rows,
            num_ranks=self.num_ranks,
            even=self.even,
            first=order[: self.global_rows],
        )
        return pieces[self.rank]

    def full_shape(self) -> StepShape:
        """Return the shape of every step except perhaps the last."""
        return full_step(self.rows, self.num_ranks)

    def shape(self, step: int) -> StepShape:
        """Return the shape of ``step``."""
        left = min(self.remaining - step * self.global_rows, self.global_rows)
        return shape_of_step(left, rows=self.rows, num_ranks=self.num_ranks, even=self.even)

    def steps(self, *, first_batch: int, batches_per_step: int) -> Iterator[StepInfo]:
        """Yield what is known of each step of this rank.

        Args:
            first_batch: Batches of the user's sampler before ``start``.
            batches_per_step: Batches of the user's sampler in one step.
        """
        last, common, rows = self.num_local_steps, self.num_common_steps, self.global_rows
        full, samples, batches = self.full_shape(), self.start, first_batch
        for number in range(1, last):
            samples, batches = samples + rows, batches + batches_per_step
            yield StepInfo(full, Position(samples, batches), ends_some_rank=number == common)
        if last:
            yield StepInfo(
                self.shape(last - 1),
                Position(self.consumed(last), batches + batches_per_step),
                is_last=True,
                ends_some_rank=True,
                ends_epoch=last == self.num_steps,
            )
