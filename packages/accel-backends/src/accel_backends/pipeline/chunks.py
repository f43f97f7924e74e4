"""Batches in chunks, and outputs of chunks as one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch

from accel_ops.nested.describe import iterate_leaves
from accel_ops.nested.structures import is_container, recursively_apply
from accel_state.errors import ConfigError


def in_chunks(data: Any, num_rows: int, num_chunks: int) -> list[Any]:
    """Return nested data in chunks of rows, of nearly the same size, none of them empty.

    Tensors of ``num_rows`` rows are split, and lists and tuples of as many strings. All else is in every chunk.
    """
    bounds = chunk_bounds(num_rows, num_chunks)

    def has_rows(value: Any) -> bool:
        if isinstance(value, (list, tuple)):
            return len(value) == num_rows and all(isinstance(one, str) for one in value)
        return isinstance(value, torch.Tensor) and value.ndim > 0 and value.shape[0] == num_rows

    def rows(first: int, last: int) -> Any:
        return recursively_apply(lambda value: value[first:last], data, test_type=has_rows)

    return [rows(first, last) for first, last in bounds]


def num_micro_batches(num_rows: int, *, num_stages: int, wanted: int | None = None) -> int:
    """Return in how many micro-batches a batch of ``num_rows`` passes through a pipeline."""
    return max(1, min(wanted or 2 * num_stages, num_rows))


def chunk_bounds(num_rows: int, num_chunks: int) -> list[tuple[int, int]]:
    """Return the first row of each chunk and the one after its last; the first chunks may have a row more."""
    num_chunks = max(1, min(num_chunks, num_rows))
    share, more = divmod(num_rows, num_chunks)
    firsts = [number * share + min(number, more) for number in range(num_chunks + 1)]
    return list(pairwise(firsts))


def joined(outputs: Sequence[Any], num_rows: Sequence[int]) -> Any:
    """Return the outputs of chunks, of ``num_rows`` each, as those of the full batch.

    Raises:
        ConfigError: If a tensor does not have the rows of its chunk, or anything else differs between chunks.
    """
    if len(outputs) == 1:
        return outputs[0]
    columns = zip(*map(iterate_leaves, outputs), strict=True)
    values = (_joined_leaf(column, num_rows) for column in columns)
    return recursively_apply(
        lambda _: next(values), outputs[0], test_type=lambda leaf: not is_container(leaf)
    )


def _joined_leaf(column: Sequence[Any], num_rows: Sequence[int]) -> Any:
    first = column[0]
    if not isinstance(first, torch.Tensor):
        if all(leaf is first or leaf == first for leaf in column):
            return first
        raise ConfigError(
            f"The model returns a `{type(first).__name__}` that differs between the chunks of a batch, so it has no "
            "value for the batch. Pass `num_chunks=1`, or let the model leave it out of its output."
        )
    if any(not leaf.ndim or leaf.shape[0] != rows for leaf, rows in zip(column, num_rows, strict=True)):
        raise ConfigError(
            f"The model returns a tensor of the shape {tuple(first.shape)} for a chunk of {num_rows[0]} rows. What is "
            "not one value per row, such as a loss, cannot be put together from several chunks. Pass `num_chunks=1`, "
            "or let the model leave it out of its output (a loss: leave out the labels)."
        )
    return torch.cat(list(column))
