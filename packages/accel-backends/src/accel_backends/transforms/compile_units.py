"""Compiles the repeated parts of a model in place: no name and no class changes, and equal blocks share a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_backends.transforms.activation_checkpointing import CheckpointedForward
from accel_state.enums import DynamoBackend

if TYPE_CHECKING:
    from accel_backends.plugins.dynamo import TorchDynamoPlugin


def compile_units(modules: Iterable[nn.Module], plugin: TorchDynamoPlugin) -> None:
    """Compile the forward of each module but embeddings as ``plugin`` says; do nothing if it names no backend.

    The forward and not the module, so that the hooks which gather parameters run outside of the compiled code.
    """
    if plugin.backend == DynamoBackend.NO:
        return
    for module in modules:
        if isinstance(module, nn.Embedding):  # one kernel, and torch cannot trace one that is split by rows
            continue
        forward = module.forward
        if isinstance(forward, CheckpointedForward) and not forward.is_traceable:
            forward.original = _compiled(forward.original, plugin)
        else:
            module.forward = _compiled(forward, plugin)


def _compiled(forward: Callable[..., Any], plugin: TorchDynamoPlugin) -> Callable[..., Any]:
    is_compiled = hasattr(forward, "_torchdynamo_orig_callable")
    return forward if is_compiled else torch.compile(forward, **plugin.to_kwargs())
