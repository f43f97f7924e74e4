"""Compiles a model as the user's dynamo plugin says."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from torch import nn

from accel_backends.containers import is_compiled_module
from accel_backends.transforms.protocol import Stage
from accel_backends.transforms.regional import compile_regions, has_compiled_regions
from accel_state.enums import DynamoBackend

if TYPE_CHECKING:
    from accel_backends.plugins.dynamo import TorchDynamoPlugin


def compile_model(model: nn.Module, plugin: TorchDynamoPlugin) -> nn.Module:
    """Return ``model`` compiled as ``plugin`` says, or as it is if the plugin names no backend.

    A model that has been compiled already, as a whole or by region, is returned as it is.
    """
    if plugin.backend == DynamoBackend.NO or is_compiled_module(model) or has_compiled_regions(model):
        return model
    if plugin.use_regional_compilation:
        return compile_regions(model, **plugin.to_kwargs())
    from accel_backends.transforms.compiled_module import compile_module

    return compile_module(model, **plugin.to_kwargs())


class CompileTransform:
    """Compilation as a step of preparing a model, for training and evaluation alike."""

    stage: ClassVar[Stage] = Stage.COMPILE

    def __init__(self, plugin: TorchDynamoPlugin) -> None:
        self.plugin = plugin

    def apply(self, model: nn.Module, *, evaluation_mode: bool) -> nn.Module:
        """Return ``model``, compiled as the plugin says."""
        return compile_model(model, self.plugin)
