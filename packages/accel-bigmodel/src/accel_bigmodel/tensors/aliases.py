"""Weights that a model also keeps in plain attributes, lists and dictionaries, beside its parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from accel_ops.named_tensors import walk_modules

# What every module has: tables of torch's own, and of hooks, which are functions.
_OWN = frozenset(vars(nn.Module()))
_DEPTH = 3
_KINDS = (list, tuple, dict, torch.Tensor)


def repair_aliases(model: nn.Module, fresh: Mapping[int, torch.Tensor]) -> None:
    """Replace, wherever modules of ``model`` keep them, tensors by those that took their place.

    A tensor on the meta device that stays behind would be worse than an error: kernels such as that of ``F.linear``
    take it beside tensors with values and return numbers that mean nothing.

    Args:
        model: All its modules' attributes are looked through, and lists, tuples and dictionaries in them.
        fresh: By identity of the tensor that was there, the one that is to be.
    """
    if not fresh:
        return
    for _, module in walk_modules(model):
        attributes = vars(module)
        for name in attributes.keys() - _OWN:
            value = attributes[name]
            if isinstance(value, _KINDS):
                repaired = _repaired(value, fresh, depth=0)
                if repaired is not value:
                    attributes[name] = repaired


def _repaired(value: Any, fresh: Mapping[int, torch.Tensor], *, depth: int) -> Any:
    if isinstance(value, torch.Tensor):
        return fresh.get(id(value), value)
    if depth == _DEPTH or not isinstance(value, _KINDS) or not value:
        return value
    if isinstance(value, dict):
        for key, item in list(value.items()):
            repaired = _repaired(item, fresh, depth=depth + 1)
            if repaired is not item:
                value[key] = repaired
        return value
    items = [_repaired(item, fresh, depth=depth + 1) for item in value]
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    if isinstance(value, list):
        value[:] = items
        return value
    return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
