"""Compile a model as the user's `TorchDynamoPlugin` specifies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from accel_backends.transforms.regional import compile_regions, has_compiled_regions
from accel_backends.unwrap import is_compiled_module
from accel_state.enums import DynamoBackend
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.plugins.dynamo import TorchDynamoPlugin
    from accel_state.devices import Vendor


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


def check_compiler(plugin: TorchDynamoPlugin, vendor: Vendor) -> None:
    """Refuse torch's own compiler on devices that it generates no code for.

    Raises:
        ConfigError: Naming the compiler that does.
    """
    if plugin.backend != DynamoBackend.INDUCTOR or vendor.compiler == "inductor":
        return
    is_setting = vendor.compiler.upper() in DynamoBackend.list()
    hint = (
        f"Use `dynamo_backend={vendor.compiler}`."
        if is_setting
        else f'Leave it out, and prepare `torch.compile(model, backend="{vendor.compiler}")`.'
    )
    raise ConfigError(f"`dynamo_backend=inductor` generates no code for `{vendor.name}` devices. {hint}")
