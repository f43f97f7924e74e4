"""Store weights in a small dtype, and upcast them for the forward pass of their module."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.base import ModelHook, add_hook_to_module
from accel_state.errors import ConfigError

SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING: tuple[type[nn.Module], ...] = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Linear,
)


class LayerwiseCastingHook(ModelHook):
    """Stores the weights of a module in ``storage_dtype``, and upcasts them for its forward pass.

    Args:
        storage_dtype: The dtype between forward passes, such as ``torch.float8_e4m3fn``.
        compute_dtype: The dtype during a forward pass.
        non_blocking: Do not wait for the casts.
    """

    def __init__(self, storage_dtype: torch.dtype, compute_dtype: torch.dtype, non_blocking: bool) -> None:
        self.storage_dtype = storage_dtype
        self.compute_dtype = compute_dtype
        self.non_blocking = non_blocking

    def init_hook(self, module: nn.Module) -> nn.Module:
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return module

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        module.to(dtype=self.compute_dtype, non_blocking=self.non_blocking)
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)
        return output

    def after_error(self, module: nn.Module) -> None:
        module.to(dtype=self.storage_dtype, non_blocking=self.non_blocking)


def attach_layerwise_casting_hooks(
    module: nn.Module,
    storage_dtype: torch.dtype,
    compute_dtype: torch.dtype,
    skip_modules_pattern: str | Sequence[str] | None = None,
    skip_modules_classes: tuple[type[nn.Module], ...] | None = None,
    non_blocking: bool = False,
) -> None:
    """Add a `LayerwiseCastingHook` to every linear and convolution inside ``module``.

        attach_layerwise_casting_hooks(model, torch.float8_e4m3fn, torch.bfloat16, skip_modules_pattern="norm")

    Args:
        module: The model, or a part of it.
        storage_dtype: As for the hook.
        compute_dtype: As for the hook.
        skip_modules_pattern: Regular expressions; modules whose dotted names match are left unchanged.
        skip_modules_classes: Classes that are left unchanged.
        non_blocking: As for the hook.

    Raises:
        ConfigError: If a module without a hook uses one of the weights.
    """
    hook = LayerwiseCastingHook(storage_dtype, compute_dtype, non_blocking)
    patterns = (
        (skip_modules_pattern,) if isinstance(skip_modules_pattern, str) else skip_modules_pattern or ()
    )
    cast = dict(_modules_to_cast(module, "", tuple(patterns), skip_modules_classes or ()))
    stored = {id(tensor): name for name, part in cast.items() for tensor in part.parameters()}
    inside = {id(inner) for part in cast.values() for inner in part.modules()}
    for name, part in module.named_modules():
        for weight, tensor in part.named_parameters(name, recurse=False):
            if id(tensor) in stored and id(part) not in inside:
                raise ConfigError(
                    f"`{weight}` is tied to `{stored[id(tensor)]}`, and would stay in {storage_dtype} in the forward "
                    f"pass of its module. Add `{stored[id(tensor)]}` to `skip_modules_pattern`."
                )
    for part in cast.values():
        add_hook_to_module(part, hook, append=True)


def _modules_to_cast(
    module: nn.Module, name: str, patterns: tuple[str, ...], classes: tuple[type[nn.Module], ...]
) -> Iterator[tuple[str, nn.Module]]:
    if isinstance(module, classes) or any(re.search(pattern, name) for pattern in patterns):
        return
    if isinstance(module, SUPPORTED_PYTORCH_LAYERS_FOR_UPCASTING):
        yield name, module
        return
    for child_name, child in module.named_children():
        yield from _modules_to_cast(child, f"{name}.{child_name}" if name else child_name, patterns, classes)
