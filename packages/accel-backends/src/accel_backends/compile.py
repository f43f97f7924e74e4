"""Compile a model in place: the forward of each repeated block, or of the whole model if it repeats none.

The forward and not the module: hooks, which gather parameters for one, run outside of the compiled code, and
`torch.nn.Module.compile` compiles nothing, without a word, for the classes of torch itself (as of torch 2.13).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_backends.plans.repeated_blocks import has_repeated_blocks, is_repeated_blocks
from accel_backends.plans.sources import resolve_plan
from accel_backends.unwrap import is_compiled_module
from accel_backends.wrapped_forward import WrappedForward
from accel_state.enums import DynamoBackend
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.plugins.dynamo import TorchDynamoPlugin
    from accel_state.devices import Vendor


class CompiledForward(WrappedForward):
    """A forward that `torch.compile` has compiled; a copy of its module compiles the forward of the copy.

    Args:
        original: The forward to run.
        **settings: Arguments of `torch.compile`.
    """

    def __init__(self, original: Callable[..., Any], **settings: Any) -> None:
        super().__init__(original)
        self.settings = settings
        self._compiled: Callable[..., Any] = torch.compile(original, **settings)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compiled(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return _compile_again, (self.original, self.settings)


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


def compile_model(model: nn.Module, plugin: TorchDynamoPlugin) -> None:
    """Compile ``model`` in place: as a whole, or by region if ``plugin`` requests it.

    Does nothing if the plugin names no backend, or if the model or a region of it is compiled already.
    """
    if plugin.backend == DynamoBackend.NO or has_compiled_regions(model):
        return
    compile_forwards(_regions(model) if plugin.use_regional_compilation else [model], **plugin.to_kwargs())


def compile_regions(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile each repeated block in place, and each part of the model next to them but embeddings; return ``module``.

    A model without repeated blocks is compiled as a whole. Equal blocks share one graph.

    Args:
        module: The model.
        **compile_kwargs: Arguments of `torch.compile`.
    """
    compile_forwards(_regions(module), **compile_kwargs)
    return module


def compile_regions_deepspeed(module: nn.Module, **compile_kwargs: Any) -> None:
    """Compile ``module`` like `compile_regions`; return nothing."""
    compile_regions(module, **compile_kwargs)


def compile_regions_fsdp2(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile the FSDP units of ``module`` in place, or all of it if it has none; return it."""
    compile_forwards(
        [module.get_submodule(name) for name in resolve_plan(module).units or ("",)], **compile_kwargs
    )
    return module


def compile_forwards(modules: Iterable[nn.Module], **compile_kwargs: Any) -> None:
    """Compile the forward of each module in place, but those of embeddings and of modules that are compiled already.

    Autocast, and checkpointing that torch cannot trace, stay outside of the compiled code.
    """
    for module in modules:
        if isinstance(module, nn.Embedding):  # one kernel, and torch cannot trace one that is split by rows
            continue
        if is_compiled(module):
            continue
        outer: WrappedForward | None = None
        forward: Any = module.forward
        while isinstance(forward, WrappedForward) and not forward.is_traceable:
            outer, forward = forward, forward.original
        if outer is None:
            module.forward = CompiledForward(forward, **compile_kwargs)
        else:
            outer.original = CompiledForward(forward, **compile_kwargs)


def is_compiled(module: nn.Module) -> bool:
    """Whether calling ``module`` runs compiled code, whoever has compiled it."""
    forward = module.__dict__.get("forward")
    while isinstance(forward, WrappedForward) and not isinstance(forward, CompiledForward):
        forward = forward.original
    return (
        isinstance(forward, CompiledForward)
        or hasattr(forward, "_torchdynamo_orig_callable")
        or module._compiled_call_impl is not None
        or is_compiled_module(module)
    )


def has_compiled_regions(module: nn.Module) -> bool:
    """Whether ``module`` or a part of it is compiled."""
    return any(map(is_compiled, module.modules()))


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


def _compile_again(original: Callable[..., Any], settings: dict[str, Any]) -> CompiledForward:
    return CompiledForward(original, **settings)
