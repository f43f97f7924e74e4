"""Sharding of batches whose order is only known by reading them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from accel_data.step import NO_BATCH, GlobalStep, StepShape, pad_pieces
from accel_state.errors import ConfigError

Batch = list[Any]


@dataclass(frozen=True, slots=True)
class StreamSharding:
    """How a stream of batches is distributed to ``num_ranks`` ranks.

    Args:
        num_ranks: Ranks that share the stream.
        rows: Rows of one rank in a full step; None when the batches have no fixed size.
        split: Split each batch into pieces instead of distributing full batches.
        even: Complete short pieces with the first samples of the stream. Without ``rows``, give ranks that have no
            batch in the last step the first batches.
        drop_last: Leave out a last step in which a rank would have no batch.
        source: Name of what yields the batches, for messages.
    """

    num_ranks: int
    rows: int | None
    split: bool
    even: bool
    drop_last: bool
    source: str = "BatchSampler"

    @property
    def num_first(self) -> int:
        """How many of the first samples can be needed to complete the last step; batches, without ``rows``."""
        return self.num_ranks if self.rows is None else self.rows * self.num_ranks

    def steps(self, batches: Iterator[Batch], *, first: list[Any] | None = None) -> Iterator[GlobalStep]:
        """Yield the steps, each once it is known whether another one follows.

        Args:
            batches: What remains of the stream.
            first: The first samples of the stream, without ``rows`` its first batches, if ``batches`` does not begin
                with them.

        Raises:
            ConfigError: If a batch has a size that cannot be distributed.
        """
        group = self._next_group(batches)
        first = [] if first is None else list(first)
        while group:
            following = self._next_group(batches)
            self._check_sizes(group, is_last=not following)
            if self.even and len(first) < self.num_first:
                new = group if self.rows is None else [index for piece in group for index in piece]
                first += new[: self.num_first - len(first)]
            yield self._step(
                group, first, num_following=self.num_ranks if following and self.even else len(following)
            )
            group = following

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

    def _step(self, group: list[Batch], first: list[Any], *, num_following: int) -> GlobalStep:
        missing = self.num_ranks - len(group)
        num_valid = (*map(len, group), *[0] * missing)
        pieces: list[Any] = group + [NO_BATCH] * missing
        if self.even and self.rows is not None:
            pieces = pad_pieces(group + [[] for _ in range(missing)], rows=self.rows, first=first)
        elif self.even:
            pieces = group + list(islice(cycle(first), missing))
        rows = tuple(0 if piece is NO_BATCH else len(piece) for piece in pieces)
        return GlobalStep(pieces, StepShape(rows, num_valid), 1 if self.split else len(group), num_following)
