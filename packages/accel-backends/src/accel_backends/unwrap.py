"""The wrappers around a user's model, data-parallel containers and compiled modules, and the model inside."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import TypeVar, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_backends.autocast_forward import restore_forward

Model = TypeVar("Model", bound=nn.Module)

_CONTAINERS: list[type[nn.Module]] = [DistributedDataParallel, nn.DataParallel]


def register_container(kind: type[nn.Module]) -> None:
    """Make `extract_model_from_parallel` open modules of ``kind``, which hold the model as ``.module``.

    A strategy calls this when it first builds such a container, so that its library is imported only then.
    """
    if kind not in _CONTAINERS:
        _CONTAINERS.append(kind)


def containers() -> tuple[type[nn.Module], ...]:
    """Return the classes that wrap a model for parallel work and hold it as ``.module``."""
    return tuple(_CONTAINERS)


def is_container(module: nn.Module) -> bool:
    """Whether ``module`` wraps a model for parallel work and holds it as ``.module``."""
    return isinstance(module, containers())


def is_compiled_module(module: nn.Module) -> bool:
    """Whether ``module`` is what ``torch.compile(model)`` returns; models that are compiled in place are not."""
    # The compiler takes a second to import; where nobody has, nothing can be compiled.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    return dynamo is not None and isinstance(module, dynamo.OptimizedModule)


def layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield ``module`` and what it wraps, from the outside in; the last is the user's own model."""
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


def inner_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the user's optimizer inside a prepared one; any other optimizer is returned as it is."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


def stepped_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the optimizer that steps the parameters, inside a prepared one; any other is returned as it is."""
    return getattr(optimizer, "engine_optimizer", None) or inner_optimizer(optimizer)


def extract_model_from_parallel(
    model: Model,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> Model:
    """Return the model inside its distributed containers; the containers go on working.

    Args:
        model: A model, wrapped or not.
        keep_fp32_wrapper: Leave the mixed-precision wrapper on the forward. Without it the original forward
            is restored on the model itself, so a container around it computes without autocast from then on.
        keep_torch_compile: Leave the model inside what ``torch.compile(model)`` returned. Without it the model is
            returned. What `prepare` compiles in place has no such wrapper and is returned with its compiled
            forward; ``with torch.compiler.set_stance("force_eager"):`` runs it uncompiled.
        recursive: Open containers around submodules as well; the result is then a shallow copy with the same
            parameters if there were any.
    """
    open_one = _open_all if recursive else _open
    inner = open_one(model, keep_torch_compile=keep_torch_compile)
    if not keep_fp32_wrapper:
        restore_forward(innermost(inner))
    return cast(Model, inner)


def _open(model: nn.Module, *, keep_torch_compile: bool) -> nn.Module:
    """Return the model inside containers at the top, compiled or not as asked."""
    around = list(layers(model))
    inner = around[-1]
    if not keep_torch_compile:
        return inner
    if not any(map(is_container, around)):
        return model
    compiled = next((layer for layer in around if is_compiled_module(layer)), None)
    if compiled is None:
        return inner
    if compiled._orig_mod is inner:
        return compiled
    # A container was compiled: compile what is inside it in the same way, and leave the container as it is.
    return type(compiled)(inner, compiled.dynamo_ctx)


def _open_all(model: nn.Module, *, keep_torch_compile: bool) -> nn.Module:
    """Return ``model`` without containers, at the top or inside; a module with one inside is a shallow copy."""
    inner = _open(model, keep_torch_compile=keep_torch_compile)
    children = {
        name: child if child is None else _open_all(child, keep_torch_compile=keep_torch_compile)
        for name, child in inner._modules.items()
    }
    if any(child is not inner._modules[name] for name, child in children.items()):
        inner = copy.copy(inner)
        inner.__dict__["_modules"] = children
    return inner
