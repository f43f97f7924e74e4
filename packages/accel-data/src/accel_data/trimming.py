"""Gathered rows without duplicates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from accel_data.step import StepShape
from accel_ops.nested.describe import iterate_tensors
from accel_ops.nested.structures import recursively_apply
from accel_ops.objects import items_of


@dataclass(frozen=True, slots=True)
class Selection:
    """The values to keep of a step that all ranks of the world have gathered.

    Args:
        shape: The step, over the ranks that read different data.
        ranks: For each of these, the rank of the world whose values are kept.
        world_size: The ranks of the world.
        full_rows: Rows of a rank in a full step; values with as many are reduced to its new samples, too.
        counts_batches: Whether the shape counts batches of any number of rows.
    """

    shape: StepShape
    ranks: tuple[int, ...]
    world_size: int
    full_rows: int | None = None
    counts_batches: bool = False

    def select_rows(self, data: Any) -> Any:
        """Return nested tensors without padding. Of tensors with another number of rows, all of ``ranks`` are kept."""
        return recursively_apply(self._select, data)

    def select_items(self, values: Sequence[Any]) -> list[Any]:
        """Return the items of the objects of all ranks, as `select_rows`."""
        items: list[Any] = []
        for rank, rows, num_valid in zip(self.ranks, self.shape.rows, self.shape.num_valid, strict=True):
            value = values[rank]
            if self.counts_batches:
                items += items_of(value) if num_valid else []
            elif items_without_rows(value, rows, self.full_rows):
                items += items_of(value)
            else:
                items += value[:num_valid]
        return items

    def _select(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim:  # has not been gathered yet
            return tensor
        rows, valid = tensor.shape[0] // self.world_size, self.shape.num_valid
        if self.counts_batches:
            kept = [rows * bool(number) for number in valid]
        else:
            kept = list(valid) if rows in (self.shape.rows[0], self.full_rows) else [rows] * len(valid)
        parts = [
            slice(rank * rows, rank * rows + number)
            for rank, number in zip(self.ranks, kept, strict=True)
            if number
        ]
        if all(one.stop == two.start for one, two in pairwise(parts)):  # a view
            return tensor[parts[0].start : parts[-1].stop] if parts else tensor[:0]
        return torch.cat([tensor[part] for part in parts])


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
