"""Gathered rows without duplicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch

from accel_data.step import StepShape
from accel_ops.nested.describe import iterate_tensors
from accel_ops.nested.structures import recursively_apply


def select_rows(
    data: Any, shape: StepShape, ranks: tuple[int, ...], world_size: int, full_rows: int | None = None
) -> Any:
    """Return nested tensors, gathered from an even step, without padding. Of tensors that have another number of
    rows, all rows of ``ranks`` are kept.

    Args:
        data: Tensors with the rows of all ranks of the world.
        shape: The step, over the ranks that read different data.
        ranks: For each of these, the rank of the world whose rows are kept.
        world_size: The ranks of the world.
        full_rows: Rows of a rank in a full step; tensors with as many are reduced to its new samples, too.
    """
    return _select(
        data,
        ranks,
        world_size,
        lambda rows: shape.num_valid if rows in (shape.rows[0], full_rows) else [rows] * len(ranks),
    )


def select_blocks(data: Any, shape: StepShape, ranks: tuple[int, ...], world_size: int) -> Any:
    """Return nested tensors as `select_rows` does, where the shape counts batches of any number of rows."""
    return _select(data, ranks, world_size, lambda rows: [rows * bool(valid) for valid in shape.num_valid])


def _select(
    data: Any, ranks: tuple[int, ...], world_size: int, num_kept: Callable[[int], Sequence[int]]
) -> Any:
    """Keep the leading rows of the blocks of ``ranks``: ``num_kept(rows)`` for blocks of ``rows`` each."""

    def select(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:  # has not been gathered yet
            return tensor
        rows = tensor.shape[0] // world_size
        parts = [
            slice(rank * rows, rank * rows + kept)
            for rank, kept in zip(ranks, num_kept(rows), strict=True)
            if kept
        ]
        if all(one.stop == two.start for one, two in pairwise(parts)):  # a view
            return tensor[parts[0].start : parts[-1].stop] if parts else tensor[:0]
        return torch.cat([tensor[part] for part in parts])

    return recursively_apply(select, data)


def average_blocks(data: Any, of_world: tuple[int, ...]) -> Any:
    """Return gathered floating-point tensors whose blocks are the mean over the ranks with one number in ``of_world``.

    Equal blocks stay as they are, to the last bit.
    """

    def average(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or not len(tensor) or not tensor.is_floating_point():
            return tensor
        blocks = list(tensor.chunk(len(of_world)))
        for number in set(of_world):
            members = [rank for rank, one in enumerate(of_world) if one == number]
            first, *others = (blocks[rank] for rank in members)
            if not all(torch.equal(first, other) for other in others):
                mean = torch.stack([first, *others]).mean(0)
                for rank in members:
                    blocks[rank] = mean
        return torch.cat(blocks)

    return recursively_apply(average, data)


def tensor_without_rows(data: Any, rows: int, full_rows: int | None = None) -> str | None:
    """Describe the first tensor that has neither ``rows`` nor ``full_rows`` rows; None if there is none."""
    for tensor in iterate_tensors(data):
        found = tensor.shape[0] if tensor.ndim else None
        if found not in (rows, full_rows or rows) and not (found is None and rows == 1):
            return f"A tensor of shape {tuple(tensor.shape)} has {found or 'no'} rows"
    return None


def items_without_rows(items: Any, rows: int, full_rows: int | None = None) -> str | None:
    """Describe objects that are not one list of ``rows`` or ``full_rows`` items; None if they are."""
    if not isinstance(items, (list, tuple, torch.Tensor)) or (
        isinstance(items, torch.Tensor) and not items.ndim
    ):
        return f"An object of type `{type(items).__name__}` has no rows"
    return None if len(items) in (rows, full_rows) else f"A list has {len(items)} items"
