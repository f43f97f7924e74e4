"""Sizes of the parts of a model in bytes, and Accelerate's planning functions for them.

`infer_auto_device_map` does not use these functions: it plans in one pass over the tree of `model_pieces`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeAlias

import torch
from torch import nn

from accel_bigmodel.dtypes import as_dtype, memory_byte_size
from accel_bigmodel.tensors import named_module_tensors
from accel_ops.byte_sizes import convert_file_size_to_int
from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError

_Item: TypeAlias = tuple[str, nn.Module]


def compute_module_sizes(
    model: nn.Module,
    dtype: str | torch.dtype | CustomDtype | None = None,
    special_dtypes: Mapping[str, str | torch.dtype | CustomDtype] | None = None,
    buffers_only: bool = False,
) -> dict[str, int]:
    """Return the bytes of the model (under ``""``), of every submodule and of every tensor, by name.

        compute_module_sizes(nn.Sequential(nn.Linear(2, 2)))  # {"": 24, "0": 24, "0.weight": 16, "0.bias": 8}

    Tied parameters count once, under their first name.

    Args:
        model: On any device, meta included.
        dtype: The dtype that floating-point weights will be loaded in; other weights keep theirs.
        special_dtypes: Exceptions by name of the tensor, for tensors of any dtype.
        buffers_only: Count only buffers.
    """
    tensors: Iterable[tuple[str, torch.Tensor]] = named_module_tensors(model, recurse=True)
    if buffers_only:
        tensors = model.named_buffers()
    special = special_dtypes or {}
    sizes: dict[str, int] = {"": 0}
    for name, tensor in tensors:
        loaded = special.get(
            name, dtype if dtype is not None and tensor.is_floating_point() else tensor.dtype
        )
        size = math.ceil(tensor.numel() * memory_byte_size(as_dtype(loaded)))
        for prefix in ("", *accumulate(name.split("."), "{}.{}".format)):
            sizes[prefix] = sizes.get(prefix, 0) + size
    return sizes


def compute_module_total_buffer_size(
    model: nn.Module,
    dtype: str | torch.dtype | CustomDtype | None = None,
    special_dtypes: Mapping[str, str | torch.dtype | CustomDtype] | None = None,
) -> int:
    """Return the bytes of all buffers; takes the arguments of `compute_module_sizes`."""
    return compute_module_sizes(model, dtype, special_dtypes, buffers_only=True)[""]


def get_max_layer_size(
    modules: Sequence[tuple[str, torch.Tensor | nn.Module]],
    module_sizes: Mapping[str, int],
    no_split_module_classes: Sequence[str] | None,
) -> tuple[int, list[str]]:
    """Return the bytes of the largest layer and the names of all layers of that size.

    A layer is a tensor, a module without children, or a module of one of ``no_split_module_classes``.

    Args:
        modules: Tensors of any shape and device, and modules to search, with their names.
        module_sizes: The result of `compute_module_sizes` for the model.
        no_split_module_classes: Names of classes that stay on one device.
    """
    layers: list[str] = []
    waiting: list[tuple[str, Any]] = list(reversed(modules))
    while waiting:
        name, part = waiting.pop()
        inner = _inner(name, part, no_split_module_classes or ())
        waiting.extend(reversed(inner))
        if not inner and module_sizes.get(name, 0):
            layers.append(name)
    largest = max((module_sizes[name] for name in layers), default=0)
    return largest, [name for name in layers if module_sizes[name] == largest]


def maximum_sizes(
    model: nn.Module, dtype: str | torch.dtype | CustomDtype | None
) -> tuple[int, tuple[int, list[str]]]:
    """Return what `calculate_maximum_sizes` returns, for a model loaded in ``dtype``."""
    sizes = compute_module_sizes(model, dtype=dtype)
    return sizes[""], get_max_layer_size(_parts("", model), sizes, getattr(model, "_no_split_modules", None))


def calculate_maximum_sizes(model: nn.Module) -> tuple[int, tuple[int, list[str]]]:
    """Return the bytes of the model, the bytes of its largest layer, and the names of all layers of that size.

    A module of a class in the model's ``_no_split_modules`` counts as one layer.
    """
    return maximum_sizes(model, None)


def get_module_leaves(module_sizes: Mapping[str, int]) -> list[str]:
    """Return the names in the table that are not a prefix of another name."""
    around = {name.rpartition(".")[0] for name in module_sizes}
    return [name for name in module_sizes if name not in around and name != ""]


def get_module_size_with_ties(
    tied_params: Iterable[str],
    module_size: int,
    module_sizes: Mapping[str, int],
    modules_to_treat: Iterable[tuple[str, nn.Module]],
) -> tuple[int, list[str], list[nn.Module]]:
    """Return the size of a module with the modules it is tied to, then the names of these modules, and the modules.

    Args:
        tied_params: Names outside the module of weights that it shares.
        module_size: The bytes of the module.
        module_sizes: The result of `compute_module_sizes` for the model.
        modules_to_treat: The modules to search for these names.

    Raises:
        ConfigError: If none of ``modules_to_treat`` contains a name.
    """
    modules = dict(modules_to_treat)
    names: dict[str, None] = {}
    for parameter in tied_params:
        owner = next((name for name in modules if f"{parameter}.".startswith(f"{name}.")), None)
        if owner is None:
            raise ConfigError(f"`{parameter}` is in none of `modules_to_treat`. Add the module that has it.")
        names[owner] = None
        module_size -= module_sizes.get(parameter, 0)
    return module_size + sum(module_sizes[n] for n in names), list(names), [modules[n] for n in names]


def fallback_allocate(
    modules: Sequence[tuple[str, nn.Module]],
    module_sizes: Mapping[str, int],
    size_limit: int | str,
    no_split_module_classes: Sequence[str] | None = None,
    tied_parameters: Sequence[Sequence[str]] | None = None,
) -> tuple[str | None, nn.Module | None, list[tuple[str, nn.Module]]]:
    """Return the first module that fits, in breadth-first order, and the remaining modules.

    Args:
        modules: Modules to search, with their names.
        module_sizes: The result of `compute_module_sizes` for the model.
        size_limit: Bytes, or a string such as ``"1GB"``.
        no_split_module_classes: Names of classes that are not split.
        tied_parameters: Groups of names; modules with such weights are skipped.
    """
    limit = convert_file_size_to_int(size_limit)
    tied = [f"{name}." for group in tied_parameters or () for name in group]
    level = deque(modules)
    while level:
        name, module = level.popleft()
        if module_sizes.get(name, 0) <= limit and not any(other.startswith(f"{name}.") for other in tied):
            return name, module, _without(modules, name)
        level.extend(_inner(name, module, no_split_module_classes or ()))
    return None, None, list(modules)


def _without(modules: Iterable[_Item], removed: str) -> list[_Item]:
    """Return ``modules`` without one, splitting the module that contains it."""
    left: list[_Item] = []
    for name, module in modules:
        if f"{removed}.".startswith(f"{name}.") and name != removed:
            left.extend(_without(_inner(name, module, ()), removed))
        elif name != removed:
            left.append((name, module))
    return left


def _inner(name: str, module: Any, not_split: Sequence[str]) -> list[_Item]:
    """Return the parts into which a module splits; none for a layer."""
    if isinstance(module, torch.Tensor) or type(module).__name__ in not_split:
        return []
    return _parts(name, module) if any(True for _ in module.children()) else []


def _parts(name: str, module: nn.Module) -> list[_Item]:
    """Return the tensors and the children of a module."""
    parts: list[tuple[str, Any]] = [*named_module_tensors(module), *module.named_children()]
    return [(f"{name}.{inner}" if name else inner, part) for inner, part in parts]
