"""Sizes of a model's parts in bytes, on any device, and planning functions that users know; the planner needs none."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
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
        inner = _inner(name, part, no_split_module_classes or ())
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


def _loaded_as(
    tensor: torch.Tensor, dtype: str | torch.dtype | CustomDtype | None
) -> torch.dtype | CustomDtype:
    return as_dtype(dtype) if dtype is not None and tensor.is_floating_point() else tensor.dtype


def get_module_leaves(module_sizes: Mapping[str, int]) -> list[str]:
    """Return the names of the table that are no prefix of another."""
    around = {name.rpartition(".")[0] for name in module_sizes}
    return [name for name in module_sizes if name not in around and name != ""]


def get_module_size_with_ties(
    tied_params: Iterable[str],
    module_size: int,
    module_sizes: Mapping[str, int],
    modules_to_treat: Iterable[tuple[str, nn.Module]],
) -> tuple[int, list[str], list[nn.Module]]:
    """Return the size of a module with the modules it is tied to, then their names and the modules themselves.

    Args:
        tied_params: Names outside the module of weights that it shares.
        module_size: The bytes of the module.
        module_sizes: The result of `compute_module_sizes` for the model.
        modules_to_treat: The modules in which to search for those names.

    Raises:
        ConfigError: If a name lies in none of ``modules_to_treat``.
    """
    candidates = list(modules_to_treat)
    names: dict[str, nn.Module] = {}
    for parameter in tied_params:
        found = [item for item in candidates if f"{parameter}.".startswith(f"{item[0]}.")]
        if not found:
            raise ConfigError(f"`{parameter}` is in none of `modules_to_treat`. Add the module that has it.")
        names[found[0][0]] = found[0][1]
        module_size -= module_sizes.get(parameter, 0)
    module_size += sum(module_sizes[name] for name in names)
    return module_size, list(names), list(names.values())


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
    tied = [name for group in tied_parameters or () for name in group]
    level: deque[tuple[_Item, tuple[_Item, ...]]] = deque((item, (item,)) for item in modules)
    while level:
        (name, module), path = level.popleft()
        is_tied = any(f"{other}.".startswith(f"{name}.") for other in tied)
        if module_sizes.get(name, 0) <= limit and not is_tied:
            return name, module, _without(modules, path)
        for child in _inner(name, module, no_split_module_classes or ()):
            level.append((child, (*path, child)))
    return None, None, list(modules)


def _without(modules: Iterable[_Item], path: Sequence[_Item]) -> list[_Item]:
    """Return ``modules`` without the last of ``path``, its enclosing modules replaced by their other parts."""
    left: list[_Item] = []
    for name, module in modules:
        if name != path[0][0]:
            left.append((name, module))
        elif len(path) > 1:
            left.extend(_without(_inner(name, module, ()), path[1:]))
    return left


def _inner(name: str, module: Any, not_split: Sequence[str]) -> list[_Item]:
    if isinstance(module, torch.Tensor) or type(module).__name__ in not_split:
        return []
    children = list(module.named_children())
    if not children:
        return []
    parts: list[tuple[str, Any]] = [*named_module_tensors(module), *children]
    return [(f"{name}.{inner}" if name else inner, part) for inner, part in parts]
