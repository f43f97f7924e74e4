"""Gathered rows without duplicates."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from accel_data.step import StepShape
from accel_ops.nested.description import iterate_tensors
from accel_ops.nested.structures import recursively_apply


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a gathered step to keep: of the blocks of some ranks the leading rows.

    Args:
        rows: Rows of each rank's block; all blocks have the same length.
        num_valid: How many rows of each block are kept, in the order of the data.
        ranks: The ranks of these blocks.
    """

    rows: int
    num_valid: tuple[int, ...]
    ranks: tuple[int, ...]

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the kept rows, as a view if they are contiguous."""
        parts = self._parts()
        if all(one.stop == two.start for one, two in pairwise(parts)):
            return tensor[parts[0].start : parts[-1].stop] if parts else tensor[:0]
        return torch.cat([tensor[part] for part in parts])

    def _parts(self) -> list[slice]:
        return [
            slice(rank * self.rows, rank * self.rows + num_valid)
            for rank, num_valid in zip(self.ranks, self.num_valid, strict=True)
            if num_valid
        ]


def select_rows(data: Any, shape: StepShape, ranks: tuple[int, ...], world_size: int) -> Any:
    """Return nested tensors, gathered from an even step, without padding. Of tensors that have another number of
    rows, all rows of ``ranks`` are kept.

    Args:
        data: Tensors with the rows of all ranks of the world.
        shape: The step, over the ranks that read different data.
        ranks: For each of these, the rank of the world whose rows are kept.
        world_size: The ranks of the world.
    """
    rows = shape.rows[0]

    def select(tensor: torch.Tensor) -> torch.Tensor:
        own = tensor.shape[0] // world_size
        num_valid = shape.num_valid if own == rows else (own,) * len(ranks)
        return Selection(own, num_valid, ranks).of_tensor(tensor)

    return recursively_apply(select, data)


def select_blocks(data: Any, shape: StepShape, ranks: tuple[int, ...], world_size: int) -> Any:
    """Return nested tensors as `select_rows` does, where the shape counts whole batches of any number of
    rows.
    """

    def select(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.shape[0] // world_size
        return Selection(
            rows, tuple([rows if num_valid else 0 for num_valid in shape.num_valid]), ranks
        ).of_tensor(tensor)

    return recursively_apply(select, data)


def whole_blocks(data: Any, ranks: tuple[int, ...], world_size: int) -> Any:
    """Return gathered nested tensors with the rows of ``ranks`` only; all ranks have the same number."""

    def select(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.shape[0] // world_size
        return Selection(rows, (rows,) * len(ranks), ranks).of_tensor(tensor)

    return recursively_apply(select, data)


def tensor_without_rows(data: Any, rows: int) -> str | None:
    """Describe the first tensor that does not have one row for each row of the batch; None if all have."""
    for tensor in iterate_tensors(data):
        found = tensor.shape[0] if tensor.ndim else None
        if found != rows and not (found is None and rows == 1):
            return f"A tensor of shape {tuple(tensor.shape)} has {found or 'no'} rows"
    return None


def items_without_rows(items: Any, rows: int) -> str | None:
    """Describe objects that are not one list with an item for each row of the batch; None if they are."""
    if not isinstance(items, (list, tuple)):
        return f"An object of type `{type(items).__name__}` has no rows"
    return None if len(items) == rows else f"A list has {len(items)} items"
