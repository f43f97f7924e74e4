"""Sizes of a model and its parts in bytes, on any device, meta included."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from accel_bigmodel.tensors.dtypes import as_dtype, memory_byte_size
from accel_bigmodel.tensors.module_tensors import named_module_tensors
from accel_state.enums import CustomDtype


def compute_module_sizes(
    model: nn.Module,
    dtype: str | torch.dtype | CustomDtype | None = None,
    special_dtypes: Mapping[str, str | torch.dtype | CustomDtype] | None = None,
    buffers_only: bool = False,
) -> dict[str, int]:
    """Return the bytes of the whole model (under ``""``), of every submodule and of every tensor, by name.

    Tied parameters count once, under their first name.

    Args:
        model: On any device, meta included.
        dtype: The dtype in which floating-point weights will be loaded; others keep theirs.
        special_dtypes: Exceptions by name of the tensor, for tensors of any dtype.
        buffers_only: Count buffers and leave parameters out.
    """
    tensors: Iterable[tuple[str, torch.Tensor]] = named_module_tensors(model, recurse=True)
    if buffers_only:
        tensors = model.named_buffers()
    special = special_dtypes or {}
    sizes: dict[str, int] = {"": 0}
    for name, tensor in tensors:
        loaded = as_dtype(special[name]) if name in special else _loaded_as(tensor, dtype)
        size = math.ceil(tensor.numel() * memory_byte_size(loaded))
        parts = name.split(".")
        for depth in range(len(parts) + 1):
            prefix = ".".join(parts[:depth])
            sizes[prefix] = sizes.get(prefix, 0) + size
    return sizes


def compute_module_total_buffer_size(
    model: nn.Module,
    dtype: str | torch.dtype | CustomDtype | None = None,
    special_dtypes: Mapping[str, str | torch.dtype | CustomDtype] | None = None,
) -> int:
    """Return the total size of all buffers; the arguments are those of `compute_module_sizes`."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)[""]


def get_max_layer_size(
    modules: Sequence[tuple[str, torch.Tensor | nn.Module]],
    module_sizes: Mapping[str, int],
    no_split_module_classes: Sequence[str] | None,
) -> tuple[int, list[str]]:
    """Return the bytes of the largest layer and the names of all layers of that size.

    A layer is a tensor, a module without children, or a module of one of ``no_split_module_classes``.

    Args:
        modules: Tensors and modules to search, with their names.
        module_sizes: The result of `compute_module_sizes` for the model.
        no_split_module_classes: Names of classes that stay on one device.
    """
    largest, names = 0, list[str]()
    waiting = list(reversed(modules))
    while waiting:
        name, part = waiting.pop()
        inner = _parts(name, part, no_split_module_classes or ())
        if inner:
            waiting.extend(reversed(inner))
            continue
        size = module_sizes.get(name, 0)
        if size > largest:
            largest, names = size, [name]
        elif size == largest and size > 0:
            names.append(name)
    return largest, names


def calculate_maximum_sizes(model: nn.Module) -> tuple[int, tuple[int, list[str]]]:
    """Return the bytes of the model, and those of its largest layer with the names of all layers of that size.

    A module of a class in the model's ``_no_split_modules`` counts as one layer.
    """
    sizes = compute_module_sizes(model)
    not_split = getattr(model, "_no_split_modules", None)
    parts: list[tuple[str, torch.Tensor | nn.Module]] = [
        *named_module_tensors(model),
        *model.named_children(),
    ]
    return sizes[""], get_max_layer_size(parts, sizes, not_split)


def _parts(
    name: str, part: torch.Tensor | nn.Module, not_split: Iterable[str]
) -> list[tuple[str, torch.Tensor | nn.Module]]:
    """Return the parts of a module, none if it is a layer."""
    if isinstance(part, torch.Tensor) or type(part).__name__ in not_split:
        return []
    children = list(part.named_children())
    if not children:
        return []
    inner: list[tuple[str, torch.Tensor | nn.Module]] = [*named_module_tensors(part), *children]
    return [(f"{name}.{inner_name}", found) for inner_name, found in inner]


def _loaded_as(
    tensor: torch.Tensor, dtype: str | torch.dtype | CustomDtype | None
) -> torch.dtype | CustomDtype:
    return as_dtype(dtype) if dtype is not None and tensor.is_floating_point() else tensor.dtype
