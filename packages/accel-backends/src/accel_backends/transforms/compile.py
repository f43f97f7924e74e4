"""Compile a model: as a whole, or its regions, so that n equal blocks are compiled once and not n times.

Most ways return a compiled copy that shares the parameters. Engines that put hooks on modules compile them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_backends.module_tree import replace_submodules, shallow_copy
from accel_backends.plans.repeated_blocks import has_repeated_blocks, is_repeated_blocks
from accel_backends.plans.sources import resolve_plan
from accel_backends.plugins.dynamo import TorchDynamoPlugin
from accel_backends.transforms.activation_checkpointing import CheckpointedForward
from accel_backends.unwrap import is_compiled_module
from accel_state.enums import DynamoBackend
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_state.devices import Vendor


def compile_model(model: nn.Module, plugin: TorchDynamoPlugin) -> nn.Module:
    """Return ``model`` compiled as ``plugin`` specifies; unchanged if the plugin names no backend.

    A model that has been compiled already, as a whole or by region, is returned unchanged.
    """
    if plugin.backend == DynamoBackend.NO or is_compiled_module(model) or has_compiled_regions(model):
        return model
    if plugin.use_regional_compilation:
        return compile_regions(model, **plugin.to_kwargs())
    return _compile_whole(model, **plugin.to_kwargs())


def check_compiler(plugin: TorchDynamoPlugin, vendor: Vendor) -> None:
    """Check that torch's own compiler generates code for the device.

    Raises:
        ConfigError: If it does not; names the compiler that does.
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


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Return a copy of ``module`` of which each repeated block, and each part beside them, is compiled on its own.

    A model without repeated blocks is compiled as a whole.

    Args:
        module: The model; it is not changed.
        **compile_kwargs: Arguments of `torch.compile`.

    Returns:
        A model of the same class with the same parameters and state dict keys; ``_orig_mod`` is the original.
    """
    if not has_repeated_blocks(module):
        return _compile_whole(module, **compile_kwargs)
    regions = set(_regions(module))
    compiled = replace_submodules(
        module, lambda part: _compile_whole(part, **compile_kwargs) if part in regions else part
    )
    if compiled is module:  # a list of blocks without parameters: there was nothing to compile
        compiled = shallow_copy(module)
    compiled.__dict__["_orig_mod"] = module
    return compiled


def has_compiled_regions(module: nn.Module) -> bool:
    """Whether ``module`` was returned by `compile_regions`, and not compiled as a whole."""
    return (
        not is_compiled_module(module)
        and "_orig_mod" in module.__dict__
        and any(is_compiled_module(submodule) for submodule in module.modules())
    )


def compile_regions_deepspeed(module: nn.Module, **compile_kwargs: Any) -> None:
    """Compile the same parts as `compile_regions`, in place, with the hooks and parameters of DeepSpeed's engine.

    Args:
        module: The model, changed in place.
        **compile_kwargs: Arguments of `torch.compile`.
    """
    for region in _regions(module) if has_repeated_blocks(module) else (module,):
        region.compile(**compile_kwargs)


def compile_regions_fsdp2(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile the units of ``module`` in place, so that equal ones share a graph; return it.

    Args:
        module: Any model; one without units is compiled as a whole.
        **compile_kwargs: Arguments of `torch.compile`.
    """
    for name in resolve_plan(module).units or ("",):
        unit = module.get_submodule(name)
        unit.forward = torch.compile(unit.forward, **compile_kwargs)
    return module


def compile_units(modules: Iterable[nn.Module], plugin: TorchDynamoPlugin) -> None:
    """Compile the forward of each module but embeddings in place; do nothing if ``plugin`` names no backend.

    The forward and not the module, so that the hooks which gather parameters run outside of the compiled code.
    """
    if plugin.backend == DynamoBackend.NO:
        return
    for module in modules:
        if isinstance(module, nn.Embedding):  # one kernel, and torch cannot trace one that is split by rows
            continue
        forward = module.forward
        if isinstance(forward, CheckpointedForward) and not forward.is_traceable:
            forward.original = _compile_forward(forward.original, plugin)
        else:
            module.forward = _compile_forward(forward, plugin)


def _regions(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the repeated blocks of a model, and the largest parts with parameters that contain none."""
    if not any(True for _ in module.parameters()):
        return
    if is_repeated_blocks(module):
        yield from module.children()
    elif has_repeated_blocks(module):
        for child in module.children():
            yield from _regions(child)
    else:
        yield module


def _compile_whole(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    # The compiler takes a second to import; questions about compiled modules do not need it.
    from accel_backends.transforms.compiled_module import compile_module

    return compile_module(module, **compile_kwargs)


def _compile_forward(forward: Callable[..., Any], plugin: TorchDynamoPlugin) -> Callable[..., Any]:
    is_compiled = hasattr(forward, "_torchdynamo_orig_callable")
    return forward if is_compiled else torch.compile(forward, **plugin.to_kwargs())
