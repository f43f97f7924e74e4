"""Return the user's model or optimizer from inside the wrappers of training."""

from __future__ import annotations

import torch
from torch import nn

from accel_backends.containers import (
    innermost,
    is_compiled_module,
    is_container,
    layers,
    original_of_compiled,
)
from accel_backends.module_tree import replace_submodules
from accel_backends.precisions.forward import restore_forward


def inner_optimizer(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return the user's optimizer inside a prepared one; any other optimizer is returned as it is."""
    inner: torch.optim.Optimizer = getattr(optimizer, "optimizer", optimizer)
    return inner


def extract_model_from_parallel(
    model: nn.Module,
    keep_fp32_wrapper: bool = True,
    keep_torch_compile: bool = True,
    recursive: bool = False,
) -> nn.Module:
    """Return the model inside its distributed containers; the containers go on working.

    Args:
        model: A model, wrapped or not.
        keep_fp32_wrapper: Leave the mixed-precision wrapper on the forward. Without it the original forward
            is restored on the model itself, so a container around it computes without autocast from then on.
        keep_torch_compile: Leave the model compiled. Without it the original, uncompiled model is returned.
        recursive: Open containers around submodules as well; the result is then a shallow copy with the same
            parameters if there were any.
    """
    inner = _open(model, keep_torch_compile=keep_torch_compile)
    if recursive:
        inner = replace_submodules(inner, lambda module: _open(module, keep_torch_compile=keep_torch_compile))
    if not keep_fp32_wrapper:
        restore_forward(innermost(inner))
    return inner


def _open(model: nn.Module, *, keep_torch_compile: bool) -> nn.Module:
    """Return the model inside containers at the top, compiled or not as asked."""
    if not any(is_container(layer) for layer in layers(model)):
        return model if keep_torch_compile else _uncompiled(model)
    compiled = next((layer for layer in layers(model) if is_compiled_module(layer)), None)
    inner = innermost(model)
    if not keep_torch_compile:
        return _uncompiled(inner)
    if compiled is None:
        return inner
    if compiled._orig_mod is inner:
        return compiled
    # A container was compiled: compile what is inside it in the same way, and leave the container as it is.
    return type(compiled)(inner, compiled.dynamo_ctx)


def _uncompiled(model: nn.Module) -> nn.Module:
    while (original := original_of_compiled(model)) is not None:
        model = original
    return model
