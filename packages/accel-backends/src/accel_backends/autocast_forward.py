"""Binds autocast and the cast back to fp32 around a model's forward, once, and takes it off again."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from accel_backends.wrapped_forward import WrappedForward
from accel_ops.nested.convert import convert_to_fp32
from accel_ops.nested.structures import recursively_apply

_HALF = (torch.float16, torch.bfloat16)


class AutocastForward(WrappedForward):
    """A forward that runs under autocast and returns fp32; beside a ``loss``, only that if ``keeps_beside_loss``.

    The other settings are those of `torch.autocast`.
    """

    is_traceable = False  # it can be taken off, and what is compiled stays compiled

    def __init__(
        self,
        original: Callable[..., Any],
        *,
        device_type: str,
        keeps_beside_loss: bool = False,
        **settings: Any,
    ) -> None:
        super().__init__(original)
        self.device_type = device_type
        self.keeps_beside_loss = keeps_beside_loss
        self.settings = settings

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._forget_casts()
        # A fresh context each time: one shared instance forgets the outer state when a forward calls itself.
        with torch.autocast(self.device_type, **self.settings):
            outputs = self.original(*args, **kwargs)
        self._forget_casts()
        if type(outputs) is torch.Tensor:
            return outputs.float() if outputs.dtype in _HALF else outputs
        if self.keeps_beside_loss and isinstance(outputs, Mapping) and _is_scalar(outputs.get("loss")):
            return recursively_apply(torch.Tensor.float, outputs, test_type=_is_scalar)
        return convert_to_fp32(outputs)

    def _forget_casts(self) -> None:
        """Clear the casts that an autocast around this one caches: of weights since changed, or without gradients."""
        if torch.is_autocast_enabled(self.device_type) and not torch.compiler.is_compiling():
            torch.clear_autocast_cache()


def _is_scalar(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() == 0 and value.is_floating_point()


def wrap_forward(model: nn.Module, **settings: Any) -> None:
    """Put an `AutocastForward` with ``settings`` around ``model.forward``, in place of an earlier one."""
    restore_forward(model)
    model.forward = AutocastForward(model.forward, **settings)
    # `torch.jit.script` calls this; it reads the source of functions alone.
    model.__dict__["__prepare_scriptable__"] = partial(_without_wrapper, model)


def _without_wrapper(model: nn.Module) -> nn.Module:
    copied = copy.copy(model)
    restore_forward(copied)
    return copied


def cast_norm_inputs(model: nn.Module) -> None:
    """Give norms with weights in 16 bits their inputs so: on CPUs autocast leaves norms alone (torch 2.13)."""
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm, _NormBase)) and module.weight is not None:
            module.register_forward_pre_hook(_cast_like_weight)


def _cast_like_weight(norm: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    dtype = norm.weight.dtype
    return (args[0].to(dtype), *args[1:]) if args and dtype in _HALF else args


def restore_forward(model: nn.Module) -> None:
    """Take the `AutocastForward` off ``model``, if there is one; what it wrapped is as it was before."""
    wrapper = model.__dict__.get("forward")
    if not isinstance(wrapper, AutocastForward):
        return
    del model.__dict__["forward"], model.__dict__["__prepare_scriptable__"]
    if not _is_own_method(wrapper.original, model):
        model.__dict__["forward"] = wrapper.original


def _is_own_method(forward: Callable[..., Any], model: nn.Module) -> bool:
    return (
        isinstance(forward, MethodType)
        and forward.__self__ is model
        and forward.__func__ is getattr(type(model).forward, "__func__", type(model).forward)
    )
