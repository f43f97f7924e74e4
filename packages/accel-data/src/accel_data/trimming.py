"""Gathered rows without those that repeat others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from accel_data.step_shape import StepShape
from accel_ops.nested.structures import recursively_apply
from accel_state.errors import StateError


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows of a gathered step to keep: from each reading rank's block its leading, real ones.

    Args:
        rows: Rows of each rank's block; all blocks have the same length.
        real: For each reading rank, in the order of the data, how many of its rows are kept.
        readers: For each of these, the number of its block.
    """

    rows: int
    real: tuple[int, ...]
    readers: tuple[int, ...]

    def of_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the kept rows, as a view where they lie together."""
        parts = self._parts()
        if all(one.stop == two.start for one, two in pairwise(parts)):
            return tensor[parts[0].start : parts[-1].stop] if parts else tensor[:0]
        return torch.cat([tensor[part] for part in parts])

    def _parts(self) -> list[slice]:
        return [
            slice(reader * self.rows, reader * self.rows + real)
            for reader, real in zip(self.readers, self.real, strict=True)
            if real
        ]


def select_rows(data: Any, shape: StepShape, readers: tuple[int, ...]) -> Any:
    """Return nested tensors, gathered from an even step, with the rows that are samples read for the first
    time.

    Args:
        data: Tensors with the rows of all ranks of the world.
        shape: The step over the ranks that read different data.
        readers: For each of these, the rank of the world whose rows are taken.
    """
    return recursively_apply(Selection(shape.rows[0], shape.real, readers).of_tensor, data)


def select_blocks(data: Any, shape: StepShape, readers: tuple[int, ...], world_size: int) -> Any:
    """Return nested tensors as `select_rows` does, where the shape counts whole batches of any number of
    rows.
    """

    def select(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.shape[0] // world_size
        return Selection(rows, tuple([rows if real else 0 for real in shape.real]), readers).of_tensor(tensor)

    return recursively_apply(select, data)


def whole_blocks(data: Any, readers: tuple[int, ...], world_size: int) -> Any:
    """Return gathered nested tensors with the rows of ``readers`` only; all ranks have as many."""

    def select(tensor: torch.Tensor) -> torch.Tensor:
        rows = tensor.shape[0] // world_size
        return Selection(rows, (rows,) * len(readers), readers).of_tensor(tensor)

    return recursively_apply(select, data)


def check_rows(data: Any, rows: int) -> None:
    """Refuse tensors that do not have one row for each row of the batch: nobody could tell which of them
    repeat.

    Raises:
        StateError: If a tensor has another length.
    """

    def check(tensor: torch.Tensor) -> torch.Tensor:
        found = tensor.shape[0] if tensor.ndim else None
        if found != rows and not (found is None and rows == 1):
            what = "has no rows" if found is None else f"has {found} rows"
            raise StateError(_refusal(f"A tensor of shape {tuple(tensor.shape)} {what}", rows))
        return tensor

    recursively_apply(check, data)


def check_items(items: Any, rows: int) -> None:
    """Refuse objects that are not one list with an item for each row of the batch.

    Raises:
        StateError: If they are not.
    """
    if not isinstance(items, (list, tuple)):
        raise StateError(_refusal(f"An object of type `{type(items).__name__}` has no rows", rows))
    if len(items) != rows:
        raise StateError(_refusal(f"A list has {len(items)} items", rows))


def _refusal(found: str, rows: int) -> str:
    return (
        f"`gather_for_metrics` removes rows that were read twice to fill the last step. {found}, but this "
        f"rank's batch has {rows}, so which ones to remove cannot be known. Pass one row for each sample "
        "(for a loss: `reduction='none'`), or use `gather` and accept the repeated ones."
    )
