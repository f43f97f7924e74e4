"""The steps of an epoch: the samples of each rank in each step, and the padding of a short one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle, islice
from typing import Any, NamedTuple, TypeVar

from accel_state.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Position:
    """The progress of all ranks together in an epoch: in samples, and in batches of the given sampler."""

    samples: int = 0
    batches: int = 0


START = Position()


class StepShape(NamedTuple):  # pickled faster than a dataclass
    """The rows that each rank reads in one step, and how many of them are not padding.

    Args:
        rows: Rows of each rank; 0 for a rank without a batch.
        num_valid: The leading rows that are new in this epoch. The rest is padding: samples that were read before.
    """

    rows: tuple[int, ...]
    num_valid: tuple[int, ...]

    @property
    def num_samples(self) -> int:
        """New samples of all ranks together."""
        return sum(self.num_valid)

    @property
    def is_even(self) -> bool:
        """Whether all ranks have the same number of rows."""
        return min(self.rows) == max(self.rows)

    @property
    def is_full(self) -> bool:
        """Whether all ranks have the same number of rows, and none is padding."""
        return self.is_even and self.rows == self.num_valid

    def remainder(self, full_rows: int | None) -> int:
        """Return the samples of a short or padded step if a full one has ``full_rows`` per rank; else 0."""
        return 0 if self.is_full and self.rows[0] == (full_rows or self.rows[0]) else self.num_samples


@dataclass(frozen=True, slots=True)
class StepInfo:
    """A step, as this rank sees it.

    Args:
        shape: Its rows; None for a self-sharding data set.
        end: The position after it.
        is_last: Whether it is this rank's last.
        ends_some_rank: Whether it is the last of any rank; None if unknown.
        ends_epoch: Whether it is known to be the last of all ranks.
        states: The states of data set and loader after it, if more has been read since.
    """

    shape: StepShape | None
    end: Position
    is_last: bool = False
    ends_some_rank: bool | None = False
    ends_epoch: bool = False
    states: ReadStates | None = None


@dataclass(frozen=True, slots=True)
class ReadStates:
    """States of the sources of a loader, right after a step was read.

    Args:
        dataset: State of the data set, if it is read in this process.
        loader: State of a `StatefulDataLoader`.
    """

    dataset: Any = None
    loader: Any = None


NO_STATES = ReadStates()


class Absent(Enum):
    """Marks a rank without a batch, since a batch may be None."""

    NO_BATCH = "no batch"


NO_BATCH = Absent.NO_BATCH


class GlobalStep(NamedTuple):  # as `StepShape`
    """One step of all ranks.

    Args:
        pieces: The batch of each rank, `NO_BATCH` for a rank without one.
        shape: How many rows these are, and how many are new.
        num_batches: Batches that were read for the step.
        num_following: Ranks, the first ones, that also have a batch in the next step.
    """

    pieces: list[Any]
    shape: StepShape
    num_batches: int
    num_following: int = 0

    @property
    def num_with_batch(self) -> int:
        """Ranks with a batch; they are the first ones."""
        return sum(piece is not NO_BATCH for piece in self.pieces)

    def seen_by(self, rank: int, *, end: Position, states: ReadStates | None = None) -> StepInfo:
        """Return the step as ``rank`` sees it; it ends at ``end``."""
        following = self.num_following
        ends_some_rank = following < len(self.pieces)
        return StepInfo(self.shape, end, rank >= following, ends_some_rank, not following, states)


def full_step(rows: int, num_ranks: int) -> StepShape:
    """Return the shape of a step of ``rows`` new samples for every rank."""
    return StepShape((rows,) * num_ranks, (rows,) * num_ranks)


def shape_of_step(num_samples: int, *, rows: int, num_ranks: int, even: bool) -> StepShape:
    """Return the shape of a step of ``num_samples``: up to ``rows`` for each rank in turn, padded if ``even``."""
    num_valid = tuple([min(max(num_samples - rank * rows, 0), rows) for rank in range(num_ranks)])
    return StepShape((rows,) * num_ranks if even else num_valid, num_valid)


def split_step(
    samples: Sequence[T], *, rows: int, num_ranks: int, even: bool, first: Sequence[T]
) -> tuple[list[list[T]], StepShape]:
    """Return each rank's part of a step of these samples, and the shape. Padding is taken from the ``first`` of the
    epoch.
    """
    shape = shape_of_step(len(samples), rows=rows, num_ranks=num_ranks, even=even)
    pieces = [list(samples[rank * rows : (rank + 1) * rows]) for rank in range(num_ranks)]
    return (pad_pieces(pieces, rows=rows, first=first) if even else pieces), shape


def pad_pieces(pieces: Iterable[list[T]], *, rows: int, first: Sequence[T]) -> list[list[T]]:
    """Return the pieces completed to ``rows`` each, with the samples of ``first`` in turn, repeated as needed."""
    padding = cycle(first)
    return [piece + list(islice(padding, rows - len(piece))) for piece in pieces]


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Distributes positions ``[start, num_samples)`` of an epoch to the ranks in steps of ``rows * num_ranks``.

    At step ``i`` rank ``r`` reads ``rows`` positions from ``start + (i * num_ranks + r) * rows``, so the
    ranks read in one step consecutive positions of the epoch, in rank order. Splitting a batch
    of ``rows * num_ranks`` and distributing full batches of ``rows`` are the same thing.

    Args:
        num_samples: Length of the epoch.
        rows: Rows of one rank in one step.
        num_ranks: Ranks that share the epoch.
        rank: The rank of this plan.
        even: Complete the last step with positions from the start of the epoch.
        drop_last: Omit a last step that is not full.
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
        """Steps with a batch for at least one rank."""
        if self.drop_last:
            return self.remaining // self.global_rows
        return -(-self.remaining // self.global_rows)

    @property
    def num_local_steps(self) -> int:
        """Steps with a batch for this rank: the first ones."""
        return self._num_steps_of(self.rank)

    @property
    def num_common_steps(self) -> int:
        """Steps with a batch for every rank: as many as the last rank has."""
        return self._num_steps_of(self.num_ranks - 1)

    def _num_steps_of(self, rank: int) -> int:
        if self.even or self.drop_last:
            return self.num_steps
        remaining = self.remaining - rank * self.rows
        return max(0, -(-remaining // self.global_rows))

    @property
    def remainder(self) -> int:
        """Samples in the last step if it is not full, else 0."""
        return 0 if self.drop_last else self.remaining % self.global_rows

    def consumed(self, steps: int) -> int:
        """Return the position after ``steps`` steps."""
        return min(self.start + steps * self.global_rows, max(self.start, self.num_samples))

    def steps(
        self, order: Sequence[int], *, first_batch: int = 0, batches_per_step: int = 1
    ) -> Iterator[tuple[list[int], StepInfo]]:
        """Yield the indices of this rank in each of its steps, with the step.

        Args:
            order: The order of the epoch.
            first_batch: Batches of the given sampler before ``start``.
            batches_per_step: Batches of the given sampler in one step.
        """
        last, common, full = self.num_local_steps, self.num_common_steps, full_step(self.rows, self.num_ranks)
        start, batches = self.start, first_batch
        for number in range(1, last + 1):
            end, low = start + self.global_rows, start + self.rank * self.rows
            indices, shape = list(order[low : low + self.rows]), full
            if end > self.num_samples:
                end = self.num_samples
                pieces, shape = split_step(
                    order[start:end],
                    rows=self.rows,
                    num_ranks=self.num_ranks,
                    even=self.even,
                    first=order[: self.global_rows],
                )
                indices = pieces[self.rank]
            start, batches = end, batches + batches_per_step
            position, ends_epoch = Position(end, batches), number == self.num_steps
            yield indices, StepInfo(shape, position, number == last, number >= common, ends_epoch)


Batch = list[Any]


@dataclass(frozen=True, slots=True)
class StreamSharding:
    """How a stream of batches is distributed to ``num_ranks`` ranks.

    Args:
        num_ranks: Ranks that share the stream.
        rows: Rows of one rank in a full step; None when the batches have no fixed size.
        split: Split each batch into pieces instead of distributing full batches.
        even: Complete short pieces with the first samples of the stream. Without ``rows``, repeat the first batches for
            ranks that have none in the last step.
        drop_last: Omit a last step that lacks a batch for some rank.
        source: Name of the source of the batches, for messages.
    """

    num_ranks: int
    rows: int | None
    split: bool
    even: bool
    drop_last: bool
    source: str = "BatchSampler"

    @property
    def num_first(self) -> int:
        """Number of first samples that may complete the last step; batches, without ``rows``."""
        return self.num_ranks if self.rows is None else self.rows * self.num_ranks

    @property
    def batches_per_step(self) -> int:
        """Batches to read for one step."""
        return 1 if self.split else self.num_ranks

    def steps(self, batches: Iterator[Batch], *, first: Iterable[Any] = ()) -> Iterator[GlobalStep]:
        """Yield the steps, each once it is known whether another one follows.

        Args:
            batches: The rest of the stream.
            first: The first samples of the stream, without ``rows`` its first batches, if ``batches`` does not start
                with them.

        Raises:
            ConfigError: If a batch has a size that cannot be distributed.
        """
        group = self._next_group(batches)
        first = list(first)
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
                    + " for batches that vary in size, or set `batch_size` to the largest."
                )
        if not is_last and not self.even and len(group) < self.num_ranks:
            raise ConfigError(
                f"`split_batches` cannot split a batch of {size}, which `{self.source}` yielded before its last, "
                f"over {self.num_ranks} processes. Pass `split_batches=False`."
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
