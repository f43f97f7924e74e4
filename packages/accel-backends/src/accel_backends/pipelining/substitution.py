"""Values in the place of placeholders, in whatever a model's forward computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from accel_ops.nested.structures import recursively_apply


def with_values(data: Any, values: Mapping[int, torch.Tensor]) -> Any:
    """Return nested data with those tensors replaced whose `id` is in ``values``."""
    return recursively_apply(lambda tensor: values.get(id(tensor), tensor), data)


def filling(values: Mapping[int, torch.Tensor]) -> Callable[..., Any]:
    """Return a forward pre-hook that replaces tensors among the arguments of a module."""

    def fill(module: nn.Module, args: Any, kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        if all(isinstance(one, torch.Tensor) and id(one) not in values for one in given):
            return None
        return with_values((args, kwargs), values)

    return fill


def siblings(model: nn.Module, name: str) -> Sequence[nn.Module]:
    """Return the modules beside the one called ``name``, which are often given the same arguments as it."""
    own = model.get_submodule(name)
    return [module for module in model.get_submodule(name.rpartition(".")[0]).children() if module is not own]


def modules_around(model: nn.Module, name: str) -> Sequence[nn.Module]:
    """Return the modules beside those that contain the one called ``name``, such as the embedding and the head."""
    found: list[nn.Module] = []
    while name := name.rpartition(".")[0]:
        found += siblings(model, name)
    return found


class Everywhere(TorchFunctionMode):
    """Replaces tensors among the operands of every operation of torch; costs some microseconds for each."""

    def __init__(self, values: Mapping[int, torch.Tensor]) -> None:
        super().__init__()
        self._values = values

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, on values."""
        kwargs = kwargs or {}
        if self._values:
            args, kwargs = with_values((args, kwargs), self._values)
        return func(*args, **kwargs)
