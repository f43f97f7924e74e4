"""Slice, concatenate and pad the rows of nested tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import torch

from accel_ops.nested.structures import (
    dataclass_items,
    honor_type,
    is_dataclass_instance,
    rebuild_dataclass,
    rebuild_mapping,
    recursively_apply,
)
from accel_state.errors import ConfigError

T = TypeVar("T")


def slice_tensors(
    data: T,
    tensor_slice: slice | torch.Tensor | Sequence[int],
    process_index: int | None = None,
    num_processes: int | None = None,
) -> T:
    """Return nested data with ``tensor[tensor_slice]`` (views where indexing gives them) for each tensor.

    Tensors may be on any device. 0-dim tensors have no rows and are returned, as are values that are not tensors.
    ``process_index`` and ``num_processes`` are unused here; other slice functions of the same interface need them.
    """
    rows: T = recursively_apply(lambda tensor: tensor[tensor_slice] if tensor.ndim else tensor, data)
    return rows


def concatenate(data: Sequence[Any], dim: int = 0) -> Any:
    """Join equal structures into one, tensor by tensor along ``dim``; a 0-dim tensor counts as one row.

    Raises:
        TypeError: If a leaf is not a tensor, and there is more than one structure.
        ConfigError: If there is nothing to join, or the structures differ.
    """
    if not data:
        raise ConfigError("`data` must hold at least one structure to concatenate, got none.")
    first = data[0]
    if isinstance(first, (tuple, list, Mapping)):
        _check_alike(data)
    if isinstance(first, (tuple, list)):
        return honor_type(
            first, [concatenate([item[i] for item in data], dim=dim) for i in range(len(first))]
        )
    if isinstance(first, Mapping):
        return rebuild_mapping(
            first, {key: concatenate([item[key] for item in data], dim=dim) for key in first}
        )
    if is_dataclass_instance(first):
        names = [name for name, _ in dataclass_items(first)]
        joined = {name: concatenate([getattr(item, name) for item in data], dim=dim) for name in names}
        return rebuild_dataclass(first, joined)
    if not isinstance(first, torch.Tensor):
        if len(data) == 1:  # nothing to join
            return first
        raise TypeError(f"Can only concatenate tensors but got {type(first)}.")
    return torch.cat([torch.atleast_1d(tensor) for tensor in data], dim=dim)  # type: ignore[no-untyped-call]


def _check_alike(containers: Sequence[Any]) -> None:
    """Raise ConfigError unless all containers have the same keys or length: the rest would be lost."""
    wanted = _keys(containers[0])
    for other in containers[1:]:
        if _keys(other) != wanted:
            raise ConfigError(
                "`data` must hold equal structures to concatenate, but one has the keys "
                f"{list(wanted)} and another {list(_keys(other))}. Pass structures with equal keys and lengths."
            )


def _keys(container: Any) -> range | set[Any]:
    """Return the keys or indices of a container; for any other value an empty range."""
    if isinstance(container, Mapping):
        return set(container)
    return range(len(container)) if isinstance(container, (tuple, list)) else range(0)


def pad_input_tensors(tensor: T, batch_size: int, num_processes: int, dim: int = 0) -> T:
    """Repeat the last row of tensors of ``batch_size`` rows until ``num_processes`` divides them evenly.

    Tensors that do not have ``batch_size`` entries along ``dim`` carry no batch and are returned.
    """
    missing = -batch_size % num_processes

    def fill(rows: torch.Tensor) -> torch.Tensor:
        if rows.ndim <= dim or rows.shape[dim] != batch_size or not missing or not batch_size:
            return rows
        last = rows.narrow(dim, batch_size - 1, 1)
        return torch.cat([rows, *[last] * missing], dim=dim)

    padded: T = recursively_apply(fill, tensor, error_on_other_type=True)
    return padded
