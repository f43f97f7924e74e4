"""Reject weights that a model also keeps in plain attributes, outside of its parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import torch
from torch import nn

from accel_ops.named_tensors import walk_modules
from accel_state.errors import StateError

# Attributes of every module: tables of torch's, and hooks, which are functions.
_OWN = frozenset(vars(nn.Module()))
_DEPTH = 3


def check_aliases(model: nn.Module, replaced: Collection[int]) -> None:
    """Raise if a plain attribute still holds a tensor without values that was replaced in its module.

    Kernels such as that of ``F.linear`` accept it and return numbers that mean nothing.

    Args:
        model: Attributes of all its modules are searched, and lists, tuples and dictionaries in them.
        replaced: The identities of the replaced tensors, all on the meta device.

    Raises:
        StateError: It names the attribute.
    """
    if not replaced:
        return
    for path, module in walk_modules(model):
        for name in vars(module).keys() - _OWN:
            if any(id(tensor) in replaced for tensor in _tensors_in(vars(module)[name], _DEPTH)):
                raise StateError(
                    f"`{path}.{name}`".replace("`.", "`")
                    + f" of `{type(module).__name__}` keeps a weight of the "
                    "skeleton, which has no values, outside of the parameters. Read the parameter in `forward`, or "
                    "build the model with its weights."
                )


def _tensors_in(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors_in(item, depth - 1)
