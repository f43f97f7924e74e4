"""Sharding of batches that can only be read one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from accel_data.step_shape import StepShape

Batch = list[Any]


@dataclass(frozen=True, slots=True)
class StreamStep:
    """One step of all ranks.

    Args:
        pieces: What each rank reads.
        shape: How much of that is read for the first time.
        num_following: Ranks, the first ones, that also have a batch in the next step.
        num_batches: Batches of the stream that this step took.
    """

    pieces: list[Batch]
    shape: StepShape
    num_following: int
    num_batches: int


@dataclass(frozen=True, slots=True)
class StreamSharding:
    """How a stream of batches is dealt to ``num_ranks`` ranks.

    Args:
        num_ranks: Ranks that share the stream.
        rows: Rows of one rank in a full step; None when the batches have no fixed size.
        split: Cut each batch into pieces instead of dealing whole batches.
        even: Complete short pieces with samples from the beginning of the stream; needs ``rows``.
        drop_last: Leave out a last step that is not full.
    """

    num_ranks: int
    rows: int | None
    split: bool
    even: bool
    drop_last: bool

    def steps(self, batches: Iterator[Batch], *, head: Batch | None = None) -> Iterator[StreamStep]:
        """Yield the steps, each as soon as it is known whether another one follows.

        Args:
            batches: What remains of the stream.
            head: The first samples of the stream where ``batches`` does not begin with them.
        """
        group = self._next_group(batches)
        head = [] if head is None else list(head)
        while group:
            following = self._next_group(batches)
            if self.even and len(head) < self._full_rows:
                head += [index for piece in group for index in piece][: self._full_rows - len(head)]
            yield self._step(
                group, head, num_following=self.num_ranks if following and self.even else len(following)
            )
            group = following

    @property
    def _full_rows(self) -> int:
        assert self.rows is not None, "only batches of a fixed size can be made even"
        return self.rows * self.num_ranks

    def _next_group(self, batches: Iterator[Batch]) -> list[Batch]:
        group = self._read_group(batches)
        return [] if self.drop_last and not self._is_full(group) else group

    def _read_group(self, batches: Iterator[Batch]) -> list[Batch]:
        if not self.split:
            return list(islice(batches, self.num_ranks))
        batch = next(batches, None)
        if not batch:
            return []
        rows = self.rows or -(-len(batch) // self.num_ranks)
        return [batch[low : low + rows] for low in range(0, len(batch), rows)]

    def _is_full(self, group: list[Batch]) -> bool:
        if len(group) < self.num_ranks:
            return False
        return self.rows is None or all(len(piece) == self.rows for piece in group)

    def _step(self, group: list[Batch], head: Batch, *, num_following: int) -> StreamStep:
        num_batches = 1 if self.split else len(group)
        pieces = group + [[] for _ in range(self.num_ranks - len(group))]
        real = tuple(map(len, pieces))
        if self.even and not self._is_full(pieces):
            filler = cycle(head)
            pieces = [
                piece + list(islice(filler, self._full_rows // self.num_ranks - len(piece)))
                for piece in pieces
            ]
        return StreamStep(pieces, StepShape(tuple(map(len, pieces)), real), num_following, num_batches)
