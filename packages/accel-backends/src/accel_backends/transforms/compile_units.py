"""Compiles the repeated parts of a model in place: no name and no class changes, and equal blocks share a graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import nn

from accel_state.enums import DynamoBackend

if TYPE_CHECKING:
    from accel_backends.plugins.dynamo import TorchDynamoPlugin


def compile_units(modules: Iterable[nn.Module], plugin: TorchDynamoPlugin) -> None:
    """Compile the forward of each module as ``plugin`` says; do nothing if it names no backend.

    The forward and not the module, so that the hooks which gather parameters run outside of the compiled code.
    """
    if plugin.backend == DynamoBackend.NO:
        return
    for module in modules:
        if not hasattr(module.forward, "_torchdynamo_orig_callable"):
            module.forward = torch.compile(module.forward, **plugin.to_kwargs())
