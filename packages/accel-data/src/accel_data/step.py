"""One step of all ranks: who reads how many rows, and what completes a short one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle, islice
from typing import Any, TypeVar

from accel_state.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Position:
    """How much of an epoch all ranks together have read: in samples, and in batches of the user's sampler."""

    samples: int = 0
    batches: int = 0


START = Position()


@dataclass(frozen=True, slots=True)
class StepShape:
    """The rows that each rank reads in one step, and how many of them are no padding.

    Args:
        rows: Rows of each rank; 0 for a rank without a batch.
        num_valid: Of those, the leading rows that are new in this epoch. The rest is padding: samples that were
            read before.
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
        """Return the samples of a step that is short or padded, where a full one has ``full_rows`` per rank; else 0."""
        return 0 if self.is_full and self.rows[0] == (full_rows or self.rows[0]) else self.num_samples


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What this rank knows about a step.

    Args:
        shape: Its rows; None where the data set shards itself.
        end: The position after it.
        is_last: Whether it is this rank's last.
        ends_some_rank: Whether it is the last of any rank; None where that cannot be known.
        ends_epoch: Whether it is known to be the last of all ranks.
        states: The states of data set and loader after it, where more has been read since.
    """

    shape: StepShape | None
    end: Position
    is_last: bool = False
    ends_some_rank: bool | None = False
    ends_epoch: bool = False
    states: ReadStates | None = None


@dataclass(frozen=True, slots=True)
class ReadStates:
    """States of what a loader reads from, right after a step was read.

    Args:
        dataset: State of the data set, where it is read in this process.
        loader: State of a `StatefulDataLoader`.
    """

    dataset: Any = None
    loader: Any = None


NO_STATES = ReadStates()


class Absent(Enum):
    """Marks a rank without a batch, since a batch may be None."""

    NO_BATCH = "no batch"


NO_BATCH = Absent.NO_BATCH


@dataclass(frozen=True, slots=True)
class GlobalStep:
    """One step of all ranks.

    Args:
        pieces: What each rank reads, `NO_BATCH` for a rank without a batch.
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
        """Return what ``rank`` knows about the step, which ends at ``end``."""
        following = self.num_following
        ends_some_rank = following < len(self.pieces)
        return StepInfo(self.shape, end, rank >= following, ends_some_rank, not following, states)


def full_step(rows: int, num_ranks: int) -> StepShape:
    """Return the shape of a step in which every rank reads ``rows`` new samples."""
    return StepShape((rows,) * num_ranks, (rows,) * num_ranks)


def shape_of_step(num_samples: int, *, rows: int, num_ranks: int, even: bool) -> StepShape:
    """Return the shape of a step of ``num_samples``, of which each rank in turn reads up to ``rows``.

    Args:
        num_samples: New samples, at most ``rows * num_ranks``.
        rows: Rows of one rank in a full step.
        num_ranks: Ranks that share the step.
        even: Pad every rank to ``rows``.
    """
    num_valid = tuple([min(max(num_samples - rank * rows, 0), rows) for rank in range(num_ranks)])
    return StepShape((rows,) * num_ranks if even else num_valid, num_valid)


def split_step(
    samples: Sequence[T], *, rows: int, num_ranks: int, even: bool, first: Sequence[T]
) -> tuple[list[list[T]], StepShape]:
    """Return each rank's part of a step, and the shape.

    Args:
        samples: The new samples, as for `shape_of_step`.
        rows: As for `shape_of_step`.
        num_ranks: As for `shape_of_step`.
        even: As for `shape_of_step`.
        first: The first samples of the epoch, from which padding is taken.
    """
    shape = shape_of_step(len(samples), rows=rows, num_ranks=num_ranks, even=even)
    pieces = [list(samples[rank * rows : (rank + 1) * rows]) for rank in range(num_ranks)]
    return (pad_pieces(pieces, rows=rows, first=first) if even else pieces), shape


def pad_pieces(pieces: Iterable[list[T]], *, rows: int, first: Sequence[T]) -> list[list[T]]:
    """Return the pieces completed to ``rows`` each, with the samples of ``first`` in turn, repeated as needed."""
    padding = cycle(first)
    return [piece + list(islice(padding, rows - len(piece))) for piece in pieces]


def rows_of_rank(batch_size: int | None, num_ranks: int, *, split_batches: bool) -> int | None:
    """Return the rows of one rank in a full step, None if the batch size is not known.

    Raises:
        ConfigError: If a batch cannot be split evenly.
    """
    if batch_size is None or not split_batches:
        return batch_size
    if batch_size % num_ranks:
        raise ConfigError(
            "`split_batches` needs a batch size that is a round multiple of the number of processes "
            f"({num_ranks}), got {batch_size}. Change the batch size or pass `split_batches=False`."
        )
    return batch_size // num_ranks
