"""What each rank gets of the batches that one rank has read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from accel_data.dispatch.rows import can_join, join_rows, num_rows, take_rows
from accel_data.step_shape import StepShape
from accel_state.errors import ConfigError

SliceRows = Callable[..., Any]


class Absent(Enum):
    """Stands where a rank has no batch; a batch may well be None."""

    NO_BATCH = "no batch"


NO_BATCH = Absent.NO_BATCH


@dataclass(frozen=True, slots=True)
class Deal:
    """One step: a piece for each rank (`NO_BATCH` for one without), its shape, and how many batches were read."""

    pieces: list[Any]
    shape: StepShape
    num_batches: int

    @property
    def num_with_batch(self) -> int:
        """Ranks with a batch; they are the first ones."""
        return sum(piece is not NO_BATCH for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Dealer:
    """Deal batches to ``num_ranks`` ranks, one batch each, or one batch cut into as many pieces.

    Args:
        num_ranks: Ranks to deal to.
        rows: Rows of each rank in a full step; None if that is not known.
        split: Cut each batch.
        even: Complete the last step with rows from the first one.
        slice_fn: Cuts a batch, called like `accel_ops.slice_tensors`. None: `take_rows`.
    """

    num_ranks: int
    rows: int | None
    split: bool
    even: bool
    slice_fn: SliceRows | None = None

    @property
    def batches_per_step(self) -> int:
        """Batches to read for one step."""
        return 1 if self.split else self.num_ranks

    def deal(self, batches: list[Any], head: list[Any], sizes: list[int | None] | None = None) -> Deal:
        """Return the pieces of one step.

        Args:
            batches: What was read: `batches_per_step` batches, fewer at the end.
            head: The batches of the first step of the epoch.
            sizes: Samples that each batch was collated from. Where a batch has another number of rows, its
                rows are not samples, and a short batch cannot be filled up with rows of others.

        Raises:
            ConfigError: If a batch must be cut and has no rows.
        """
        counts = [num_rows(batch) for batch in batches]
        has_samples = sizes is None or all(
            size in (None, count) for size, count in zip(sizes, counts, strict=True)
        )
        if not self.split and self.slice_fn is None and (not has_samples or self._are_full(counts)):
            pieces, shape = self._hand_on(batches, counts)
            return Deal(pieces, shape, len(batches))
        known = [_known(count, batch) for count, batch in zip(counts, batches, strict=True)]
        rows = (self.rows if has_samples else None) or -(-sum(known) // self.num_ranks)
        if all(can_join(batches[0], other) for other in batches[1:]):
            pieces, shape = self._cut(join_rows(batches), sum(known), rows, head)
        else:
            pieces, shape = self._fill_each(batches, known, rows)
        return Deal(pieces, shape, len(batches))

    def _are_full(self, counts: list[int | None]) -> bool:
        """Tell whether every batch is as large as it should be, or may be of any size, and no rank lacks
        one.
        """
        if not self.even:
            return True
        if self.rows is None:
            return len(counts) == self.num_ranks or None in counts or len(set(counts)) > 1
        return len(counts) == self.num_ranks and all(count == self.rows for count in counts)

    def _hand_on(self, batches: list[Any], counts: list[int | None]) -> tuple[list[Any], StepShape]:
        """Give every rank a batch as it was read; ranks that lack one get one of the others again, or
        none.
        """
        missing = self.num_ranks - len(batches)
        real = tuple([1 if count is None else count for count in counts])
        if not self.even:
            shape = (*real, *[0] * missing)
            return [*batches, *[NO_BATCH] * missing], StepShape(shape, shape)
        again = [index % len(batches) for index in range(missing)]
        rows = (*real, *[real[index] for index in again])
        return [*batches, *[batches[index] for index in again]], StepShape(rows, (*real, *[0] * missing))

    def _cut(self, joined: Any, num_real: int, rows: int, head: list[Any]) -> tuple[list[Any], StepShape]:
        """Cut rows that have been joined; the last step of an epoch is filled up first."""
        total = rows * self.num_ranks
        if self.even and num_real < total:
            joined = self._filled(joined, total - num_real, head)
        have = total if self.even else num_real
        bounds = [(min(rank * rows, have), min((rank + 1) * rows, have)) for rank in range(self.num_ranks)]
        real = tuple([max(0, min(high, num_real) - low) for low, high in bounds])
        pieces = [
            self._slice(joined, low, high, rank) if high > low else NO_BATCH
            for rank, (low, high) in enumerate(bounds)
        ]
        return pieces, StepShape(tuple([high - low for low, high in bounds]), real)

    def _filled(self, joined: Any, missing: int, head: list[Any]) -> Any:
        """Return ``joined`` and ``missing`` rows more, from the first step, or its own if those do not
        fit.
        """
        source = join_rows(head) if all(can_join(joined, batch) for batch in head) else joined
        size = num_rows(source)
        assert size, "a batch with rows was read"
        whole, rest = divmod(missing, size)
        return join_rows([joined, *[source] * whole, *([take_rows(source, 0, rest)] if rest else [])])

    def _slice(self, batch: Any, low: int, high: int, rank: int) -> Any:
        if self.slice_fn is None:
            return take_rows(batch, low, high)
        return self.slice_fn(batch, slice(low, high), process_index=rank, num_processes=self.num_ranks)

    def _fill_each(self, batches: list[Any], known: list[int], rows: int) -> tuple[list[Any], StepShape]:
        """Deal batches that cannot be joined, because their rows differ in shape: each is filled up with its
        own.
        """
        pieces, real = list(batches), list(known)
        if self.even:
            rows = max(rows, *known)
            pieces = [
                self._filled(batch, rows - count, [batch]) if count < rows else batch
                for batch, count in zip(batches, known, strict=True)
            ]
            missing = self.num_ranks - len(pieces)
            pieces += [pieces[rank % len(batches)] for rank in range(missing)]
            return pieces, StepShape((rows,) * self.num_ranks, (*real, *[0] * missing))
        missing = self.num_ranks - len(pieces)
        shape = (*real, *[0] * missing)
        return [*pieces, *[NO_BATCH] * missing], StepShape(shape, shape)


def _known(count: int | None, batch: Any) -> int:
    if count is None:
        raise ConfigError(
            f"A batch of type `{type(batch).__name__}` has no rows, so it cannot be cut for the processes. "
            "Return tensors or lists from `collate_fn`, or pass `dispatch_batches=False`."
        )
    return count
