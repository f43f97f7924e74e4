"""Describe nested data: batch size, device, shapes, and structures to build it from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from accel_ops.nested.structures import dataclass_items, is_container, recursively_apply

#: Numbers for dtypes on the wire.
TENSOR_TYPE_TO_INT: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.uint8: 5,
    torch.int8: 6,
    torch.int16: 7,
    torch.int32: 8,
    torch.int64: 9,
    torch.bool: 10,
}

TENSOR_INT_TO_DTYPE: dict[int, torch.dtype] = {number: dtype for dtype, number in TENSOR_TYPE_TO_INT.items()}


@dataclass
class TensorInformation:
    """Shape and dtype of a tensor, enough to allocate an empty one like it."""

    shape: torch.Size
    dtype: torch.dtype


def is_tensor_information(tensor_info: object) -> bool:
    """Whether the value describes a tensor."""
    return isinstance(tensor_info, TensorInformation)


def iterate_leaves(data: Any) -> Iterator[Any]:
    """Yield the leaves of nested data of any type, in order."""
    if not is_container(data):
        yield data
    elif isinstance(data, Mapping):
        for value in data.values():
            yield from iterate_leaves(value)
    else:
        for value in (
            data if isinstance(data, (list, tuple)) else [value for _, value in dataclass_items(data)]
        ):
            yield from iterate_leaves(value)


def iterate_tensors(data: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of nested data in order, of any shape and device."""
    return (leaf for leaf in iterate_leaves(data) if isinstance(leaf, torch.Tensor))


def find_batch_size(data: Any) -> int:
    """Return the number of rows of the first tensor in nested data that has rows.

    Raises:
        ValueError: If ``data`` is an empty container.
        TypeError: If it holds no tensor with at least one dimension.
    """
    for tensor in iterate_tensors(data):
        if tensor.ndim > 0:
            return tensor.shape[0]
    if is_container(data) and next(iterate_leaves(data), data) is data:
        raise ValueError(f"Cannot find the batch size from empty {type(data)}.")
    raise TypeError(
        f"Can only find the batch size of tensors with at least one dimension but got {type(data)}."
    )


def ignorant_find_batch_size(data: Any) -> int | None:
    """Return what :func:`find_batch_size` finds, or ``None`` if there is none."""
    return next((tensor.shape[0] for tensor in iterate_tensors(data) if tensor.ndim > 0), None)


def find_device(data: Any) -> torch.device | None:
    """Return the device of the first tensor in nested data, or ``None`` if it holds none."""
    return next((tensor.device for tensor in iterate_tensors(data)), None)


def is_torch_xpu_tensor(tensor: object) -> bool:
    """Whether the value is a tensor on an XPU."""
    return isinstance(tensor, torch.Tensor) and tensor.device.type == "xpu"


def get_shape(data: Any) -> Any:
    """Return nested data with each tensor replaced by its shape, a list of integers."""
    return recursively_apply(lambda tensor: list(tensor.shape), data)


def get_data_structure(data: Any) -> Any:
    """Return nested data with each tensor replaced by a :class:`TensorInformation`."""
    return recursively_apply(lambda tensor: TensorInformation(shape=tensor.shape, dtype=tensor.dtype), data)


def initialize_tensors(data_structure: Any) -> Any:
    """Return nested data with each :class:`TensorInformation` replaced by an empty CPU tensor."""
    return recursively_apply(
        lambda info: torch.empty(info.shape, dtype=info.dtype, device="cpu"),
        data_structure,
        test_type=is_tensor_information,
    )


def listify(data: Any) -> Any:
    """Return nested data with each tensor as (nested lists of) Python numbers."""
    return recursively_apply(lambda tensor: tensor.tolist(), data)
