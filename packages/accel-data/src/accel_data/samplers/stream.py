"""Sharding of batches that can only be read one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from accel_data.step_shape import StepShape
from accel_state.errors import ConfigError

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
        drop_last: Leave out a last step in which a rank would have no batch.
        source: Name of what yields the batches, for messages.
    """

    num_ranks: int
    rows: int | None
    split: bool
    even: bool
    drop_last: bool
    source: str = "BatchSampler"

    def steps(self, batches: Iterator[Batch], *, head: Batch | None = None) -> Iterator[StreamStep]:
        """Yield the steps, each as soon as it is known whether another one follows.

        Args:
            batches: What remains of the stream.
            head: The first samples of the stream where ``batches`` does not begin with them.

        Raises:
            ConfigError: If a batch has a size that cannot be dealt.
        """
        group = self._next_group(batches)
        head = [] if head is None else list(head)
        while group:
            following = self._next_group(batches)
            self._check_sizes(group, is_last=not following)
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
        return [] if self.drop_last and not self.split and len(group) < self.num_ranks else group

    def _read_group(self, batches: Iterator[Batch]) -> list[Batch]:
        if not self.split:
            return list(islice(batches, self.num_ranks))
        batch = next(batches, None)
        if not batch:
            return []
        rows = self.rows or -(-len(batch) // self.num_ranks)
        return [batch[low : low + rows] for low in range(0, len(batch), rows)]

    def _check_sizes(self, group: list[Batch], *, is_last: bool) -> None:
        size = sum(map(len, group)) if self.split else max(map(len, group))
        if self.rows is not None and (self.even or self.split):
            limit = self.rows * self.num_ranks if self.split else self.rows
            if size > limit:
                raise ConfigError(
                    f"`{self.source}` has a `batch_size` of {limit} and yielded a batch of {size}. Pass "
                    + ("`split_batches=False`" if self.split else "`even_batches=False`")
                    + " for batches that vary in size, or let `batch_size` be the largest."
                )
        if not is_last and not self.even and len(group) < self.num_ranks:
            raise ConfigError(
                f"`split_batches` cannot give each of {self.num_ranks} processes a part of a batch of {size} that "
                f"`{self.source}` yielded before its last. Pass `split_batches=False`."
            )

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
