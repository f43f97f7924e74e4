"""Count, slice and join the rows of a batch: rows of tensors, or items of lists."""

from __future__ import annotations

from typing import Any

import torch

from accel_ops.nested.rows import concatenate
from accel_ops.nested.structures import is_container, is_namedtuple, map_children


def num_rows(batch: Any) -> int | None:
    """Return the number of rows of a batch: of its first tensor, else of its first list; None if it has neither."""
    found = _tensor_rows(batch)
    return found if found is not None else _list_rows(batch)


def take_rows(batch: Any, low: int, high: int) -> Any:
    """Return rows ``low`` to ``high`` of tensors, as views, and of lists with one item for each row.

    What has another number of rows belongs to the whole batch and is returned as it is.
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
    """Return the rows of several batches in one; `can_join` must hold for them."""
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return concatenate(batches) if first.ndim else first
    if _is_row_list(first):
        return type(first)([item for batch in batches for item in batch])
    if not is_container(first):
        return first
    columns = iter([join_rows(list(column)) for column in zip(*map(children, batches), strict=True)])
    return map_children(first, lambda _: next(columns))


def can_join(one: Any, other: Any) -> bool:
    """Whether two batches have the same structure and rows of the same shape."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor) and one.shape[1:] == other.shape[1:] and one.dtype == other.dtype
        )
    if type(one) is not type(other):
        return False
    if not is_container(one) or (_is_row_list(one) and _is_row_list(other)):
        return True
    mine, theirs = children(one), children(other)
    return len(mine) == len(theirs) and all(map(can_join, mine, theirs))


def children(value: Any) -> list[Any]:
    """Return the direct children of a container."""
    found: list[Any] = []

    def collect(child: Any) -> Any:
        found.append(child)
        return child

    map_children(value, collect)
    return found


def _tensor_rows(value: Any) -> int | None:
    if isinstance(value, torch.Tensor):
        return value.shape[0] if value.ndim else None
    if not is_container(value):
        return None
    return next((rows for child in children(value) if (rows := _tensor_rows(child)) is not None), None)


def _list_rows(value: Any) -> int | None:
    if _is_row_list(value):
        return len(value)
    if not is_container(value):
        return None
    return next((rows for child in children(value) if (rows := _list_rows(child)) is not None), None)


def _is_row_list(value: Any) -> bool:
    """Whether the value is a list with one item for each row, not a container of tensors or lists (columns)."""
    if not isinstance(value, (list, tuple)) or is_namedtuple(value):
        return False
    return not any(
        isinstance(item, (list, tuple, torch.Tensor)) or _tensor_rows(item) is not None for item in value
    )
