"""The wrappers that stand around a user's model: data-parallel containers and compiled modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import cast

from torch import nn
from torch.nn.parallel import DistributedDataParallel

_CONTAINERS: list[type[nn.Module]] = [DistributedDataParallel, nn.DataParallel]


def register_container(kind: type[nn.Module]) -> None:
    """Make `extract_model_from_parallel` open modules of ``kind``, which hold the model as ``.module``.

    A strategy calls this when it first builds such a container, so that its library is imported only then.
    """
    if kind not in _CONTAINERS:
        _CONTAINERS.append(kind)


def is_container(module: nn.Module) -> bool:
    """Whether ``module`` wraps a model for parallel work and holds it as ``.module``."""
    return isinstance(module, tuple(_CONTAINERS))


def is_compiled_module(module: nn.Module) -> bool:
    """Whether ``module`` has been compiled as a whole."""
    # The compiler takes a second to import; where nobody has, nothing can be compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def original_of_compiled(module: nn.Module) -> nn.Module | None:
    """Return what was compiled into ``module``, by region or as a whole; None if it was not compiled."""
    if is_compiled_module(module):
        return module._modules["_orig_mod"]
    return module.__dict__.get("_orig_mod")


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield ``module`` and what it wraps, from the outside in; the last is the user's own model.

    A model compiled by region counts as the user's own: it has his class, and his original stands behind it.
    """
    yield module
    while True:
        if is_container(module):
            module = cast(nn.Module, module.module)
        elif is_compiled_module(module):
            module = cast(nn.Module, module._orig_mod)
        else:
            return
        yield module


def innermost(module: nn.Module) -> nn.Module:
    """Return the user's own model inside all wrappers."""
    *_, found = layers(module)
    return found
