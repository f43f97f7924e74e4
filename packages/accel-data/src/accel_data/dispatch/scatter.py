"""Assign rows of the batches that the main process has read to ranks: rows of tensors, or items of lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accel_data.step import NO_BATCH, GlobalStep, StepShape, shape_of_step
from accel_ops.nested.describe import iterate_tensors
from accel_ops.nested.rows import concatenate
from accel_ops.nested.structures import is_container, is_namedtuple, map_children
from accel_state.errors import ConfigError

SliceRows = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ScatterPlan:
    """Scatter batches to ``num_ranks`` ranks: one batch each, or one batch split into as many pieces.

    Args:
        num_ranks: Ranks to scatter to.
        rows: Rows of each rank in a full step; None if that is not known.
        split: Split each batch.
        even: Give every rank as many rows in the last step, completed with the fewest rows of the first one.
        slice_fn: Slices a batch, called like `accel_ops.slice_tensors`. None: `take_rows`.
        drop_last: Omit a last step with too few batches.
    """

    num_ranks: int
    rows: int | None
    split: bool
    even: bool
    slice_fn: SliceRows | None = None
    drop_last: bool = False

    @property
    def batches_per_step(self) -> int:
        """Batches to read for one step."""
        return 1 if self.split else self.num_ranks

    def scatter(
        self, batches: list[Any], first: list[Any], sizes: list[int | None] | None = None
    ) -> GlobalStep:
        """Return the pieces of one step.

        Args:
            batches: The `batches_per_step` batches of the step, fewer at the end.
            first: The batches of the first step of the epoch.
            sizes: Samples that each batch was collated from. If a batch has another number of rows, its
                rows are not samples: ranks get full batches.

        Raises:
            ConfigError: If a batch must be split and has no rows, or it is unknown which of its rows are samples.
        """
        counts = [num_rows(batch) for batch in batches]
        known_sizes = counts if sizes is None else sizes
        rows_are_samples = all(size in (None, count) for size, count in zip(known_sizes, counts, strict=True))
        is_unsplit = self.slice_fn is None and (not self.split or self.num_ranks == 1)
        if is_unsplit and (not rows_are_samples or (not self.split and self._are_full(counts))):
            # If any part of the batch has one row per sample, so will the results of the loop: count samples then, not
            # the rows of the first tensor.
            in_samples = all(map(_has_items, batches, known_sizes))
            pieces, shape = self._unsplit(batches, known_sizes if in_samples else counts)
            return GlobalStep(pieces, shape, len(batches))
        known = [_checked(count, batch) for count, batch in zip(counts, batches, strict=True)]
        if not rows_are_samples and self.slice_fn is None and any(map(_has_items, batches, known_sizes)):
            raise ConfigError(
                f"A batch of {known_sizes[0]} samples has {known[0]} rows in its first tensor and one for each sample "
                "in others, so it cannot be split for the processes. Pass `split_batches=False`, or a "
                "`slice_fn_for_dispatch` that splits it."
            )
        fewest = -(-sum(known) // self.num_ranks)
        rows = fewest if self.even or not rows_are_samples else self.rows or fewest
        if all(can_join(batches[0], other) for other in batches[1:]):
            pieces, shape = self._split(join_rows(batches), sum(known), rows, first)
        else:
            pieces, shape = self._pad_each(batches, known, rows)
        return GlobalStep(pieces, shape, len(batches))

    def _are_full(self, counts: list[int | None]) -> bool:
        """Whether each rank can get an unchanged batch."""
        if not self.even:
            return True
        if self.rows is None:
            return len(counts) == self.num_ranks or None in counts or len(set(counts)) > 1
        return len(counts) == self.num_ranks and all(count == self.rows for count in counts)

    def _unsplit(self, batches: list[Any], counts: list[int | None]) -> tuple[list[Any], StepShape]:
        """Assign each rank an unchanged batch. A batch without rows counts as one."""
        return self._complete(batches, [1 if count is None else count for count in counts], batches)

    def _complete(
        self, pieces: list[Any], num_valid: list[int], padding: list[Any]
    ) -> tuple[list[Any], StepShape]:
        """Assign a piece of ``padding`` to ranks without a piece, or none if the step need not be even.

        Args:
            pieces: Of the first ranks.
            num_valid: Their new rows.
            padding: Pieces to repeat.
        """
        missing = self.num_ranks - len(pieces)
        valid = (*num_valid, *[0] * missing)
        if not self.even:
            return [*pieces, *[NO_BATCH] * missing], StepShape(valid, valid)
        pieces = pieces + [padding[index % len(padding)] for index in range(missing)]
        rows = [*num_valid, *[num_valid[index % len(num_valid)] for index in range(missing)]]
        return pieces, StepShape(tuple(rows), valid)

    def _split(
        self, joined: Any, num_samples: int, rows: int, first: list[Any]
    ) -> tuple[list[Any], StepShape]:
        """Split joined rows into the pieces, after completing the last step of an epoch."""
        shape = shape_of_step(num_samples, rows=rows, num_ranks=self.num_ranks, even=self.even)
        if sum(shape.rows) > num_samples:
            joined = _padded(joined, sum(shape.rows) - num_samples, first)
        pieces = [
            self._slice(joined, rank * rows, rank * rows + size, rank) if size else NO_BATCH
            for rank, size in enumerate(shape.rows)
        ]
        return pieces, shape

    def _slice(self, batch: Any, low: int, high: int, rank: int) -> Any:
        if self.slice_fn is None:
            return take_rows(batch, low, high)
        return self.slice_fn(batch, slice(low, high), process_index=rank, num_processes=self.num_ranks)

    def _pad_each(self, batches: list[Any], counts: list[int], rows: int) -> tuple[list[Any], StepShape]:
        """Scatter batches whose rows differ in shape and cannot be joined; each is padded with its rows."""
        if not self.even:
            return self._complete(batches, counts, batches)
        rows = max(rows, *counts)
        pieces = [
            _padded(batch, rows - count, [batch]) if count < rows else batch
            for batch, count in zip(batches, counts, strict=True)
        ]
        pieces, shape = self._complete(pieces, counts, pieces)
        return pieces, StepShape((rows,) * self.num_ranks, shape.num_valid)


def _padded(batch: Any, missing: int, first: list[Any]) -> Any:
    """Return ``batch`` with ``missing`` more rows, of the first step, or of the batch if those do not fit."""
    source = join_rows(first) if all(can_join(batch, other) for other in first) else batch
    size = num_rows(source)
    assert size, "a batch with rows was read"
    times, rest = divmod(missing, size)
    return join_rows([batch, *[source] * times, *([take_rows(source, 0, rest)] if rest else [])])


def _checked(count: int | None, batch: Any) -> int:
    if count is None:
        raise ConfigError(
            f"A batch of type `{type(batch).__name__}` has no rows, so it cannot be split for the processes. "
            "Return tensors or lists from `collate_fn`, or pass `dispatch_batches=False`."
        )
    return count


def _has_items(batch: Any, size: int | None) -> bool:
    """Whether some tensor in a batch has ``size`` rows, or some list ``size`` items of any type."""
    if isinstance(batch, torch.Tensor):
        return batch.shape[:1] == (size,)
    if isinstance(batch, list) and len(batch) == size:
        return True
    return is_container(batch) and any(_has_items(child, size) for child in children(batch))


def num_rows(batch: Any) -> int | None:
    """Return the number of rows of a batch: of its first tensor, else of its first list; None if it has neither."""
    rows = next((tensor for tensor in iterate_tensors(batch) if tensor.ndim), None)
    if rows is None:
        rows = next(_row_lists(batch), None)
    return None if rows is None else len(rows)


def take_rows(batch: Any, low: int, high: int) -> Any:
    """Return rows ``low`` to ``high`` of tensors, as views, and of lists with one item for each row.

    Values with another number of rows belong to the full batch and are returned unchanged.
    """
    rows = num_rows(batch)

    def take(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value[low:high] if value.ndim and value.shape[0] == rows else value
        if _is_row_list(value) and len(value) == rows:
            return type(value)(value[low:high])
        return map_children(value, take) if is_container(value) else value

    return take(batch)


def join_rows(batches: list[Any]) -> Any:
    """Return the rows of several batches in one; `can_join` must be true for them."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return concatenate(batches) if first.ndim else first
    if _is_row_list(first):
        return type(first)([item for batch in batches for item in batch])
    if not is_container(first):
        return first
    columns = iter([join_rows(list(column)) for column in zip(*map(children, batches), strict=True)])
    return map_children(first, lambda _: next(columns))


def can_join(first: Any, other: Any) -> bool:
    """Whether two batches have the same structure and rows of the same shape."""
    if isinstance(first, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and first.shape[1:] == other.shape[1:]
            and first.dtype == other.dtype
        )
    if type(first) is not type(other):
        return False
    if not is_container(first) or (_is_row_list(first) and _is_row_list(other)):
        return True
    mine, theirs = children(first), children(other)
    return len(mine) == len(theirs) and all(map(can_join, mine, theirs))


def children(value: Any) -> list[Any]:
    """Return the direct children of a container."""
    collected: list[Any] = []

    def collect(child: Any) -> Any:
        collected.append(child)
        return child

    map_children(value, collect)
    return collected


def _row_lists(value: Any) -> Iterator[Any]:
    """Yield the lists with one item for each row in a batch, in order."""
    if _is_row_list(value):
        yield value
    elif is_container(value):
        for child in children(value):
            yield from _row_lists(child)


def _is_row_list(value: Any) -> bool:
    """Whether the value is a list with one item for each row, not a container of tensors or lists (columns)."""
    if not isinstance(value, (list, tuple)) or is_namedtuple(value):
        return False
    return not any(
        isinstance(item, (list, tuple, torch.Tensor)) or any(tensor.ndim for tensor in iterate_tensors(item))
        for item in value
    )
