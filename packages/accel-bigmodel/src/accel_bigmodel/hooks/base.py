"""Hooks around the forward of a module, and functions that add and remove them."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import nn


class ModelHook:
    """Code that runs before and after the forward of a module; subclass it and `add_hook_to_module`."""

    no_grad = False

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Prepare ``module`` when the hook is added, and return it."""
        return module

    def attached(self, module: nn.Module) -> None:
        """Complete `init_hook`; called also if a library has replaced that method by one that does nothing."""

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments that the forward gets."""
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        """Return the output for the caller."""
        return output

    def after_error(self, module: nn.Module) -> None:
        """Undo `pre_forward` if the forward pass raised, so that `post_forward` is not called."""

    def detach_hook(self, module: nn.Module) -> nn.Module:
        """Undo `init_hook` when the hook is removed, and return ``module``."""
        return module


def call_if_defined(hook: ModelHook, method: str, module: nn.Module) -> None:
    """Call a method that hooks of other libraries need not have."""
    getattr(hook, method, lambda _: None)(module)


class SequentialHook(ModelHook):
    """Several hooks, one after the other."""

    def __init__(self, *hooks: ModelHook) -> None:
        self.hooks = hooks
        self.no_grad = any(hook.no_grad for hook in hooks)

    def init_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.init_hook(module)
        return module

    def attached(self, module: nn.Module) -> None:
        for hook in self.hooks:
            call_if_defined(hook, "attached", module)

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        entered: list[ModelHook] = []
        try:
            for hook in self.hooks:
                args, kwargs = hook.pre_forward(module, *args, **kwargs)
                entered.append(hook)
        except (
            BaseException
        ):  # also Ctrl-C: the hooks that have begun must end, since no `post_forward` follows
            for hook in reversed(entered):
                call_if_defined(hook, "after_error", module)
            raise
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def after_error(self, module: nn.Module) -> None:
        for hook in reversed(self.hooks):
            call_if_defined(hook, "after_error", module)

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module


class HookedForward:
    """Replaces a module's ``forward``.

    It looks up hook and forward in its module, so that a deep copy runs the copy's hook and forward.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.__name__, self.__doc__ = "forward", module._old_forward.__doc__

    @property
    def __wrapped__(self) -> Any:
        """The module's original forward, whose signature `inspect` shows."""
        return self.module._old_forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        module = self.module
        hook: ModelHook = module._hf_hook
        args, kwargs = hook.pre_forward(module, *args, **kwargs)
        try:
            with torch.no_grad() if hook.no_grad else contextlib.nullcontext():
                output = module._old_forward(*args, **kwargs)
        except BaseException:  # also Ctrl-C: no `post_forward` follows
            call_if_defined(hook, "after_error", module)
            raise
        return hook.post_forward(module, output)


def add_hook_to_module(module: nn.Module, hook: ModelHook, append: bool = False) -> nn.Module:
    """Run ``hook`` around the forward of ``module``, and return the module.

    Args:
        module: Changed in place: it gets the attributes ``_hf_hook`` and ``_old_forward``.
        hook: Replaces an earlier hook, which is removed first.
        append: Keep an earlier hook, and run the new one after it.
    """
    parts: Any = module
    earlier = getattr(parts, "_hf_hook", None)
    if append and earlier is not None:
        # Only the new one: the earlier hook is initialized already.
        module = _initialized(module, hook)
        parts._hf_hook = SequentialHook(*_flat(earlier), hook)
        return module
    if earlier is not None:
        remove_hook_from_module(module)
    old_forward = module.forward
    module = _initialized(module, hook)
    parts._old_forward, parts._hf_hook = old_forward, hook
    parts.forward = HookedForward(module)
    return module


def _initialized(module: nn.Module, hook: ModelHook) -> nn.Module:
    module = hook.init_hook(module)
    call_if_defined(hook, "attached", module)
    return module


def remove_hook_from_module(module: nn.Module, recurse: bool = False) -> nn.Module:
    """Remove the hook, if there is one, and return the module in its original state.

    Args:
        module: Changed in place.
        recurse: Remove the hooks of all submodules, too.
    """
    parts: Any = module
    hook = parts.__dict__.pop("_hf_hook", None)  # transformers and PEFT look for this name
    if hook is not None:
        hook.detach_hook(module)
    if "_old_forward" in parts.__dict__:
        old = parts.__dict__.pop("_old_forward")
        if isinstance(parts.__dict__.get("forward"), HookedForward):  # else replaced since: keep that
            del parts.forward
            if getattr(old, "__func__", None) is not getattr(type(module), "forward", None):
                parts.forward = old  # it was set on the module, not by its class
    if recurse:
        for child in module.children():
            remove_hook_from_module(child, recurse=True)
    return module


def remove_hook_from_submodules(module: nn.Module) -> None:
    """Remove the hooks of ``module`` and of all its submodules."""
    remove_hook_from_module(module, recurse=True)


def hooks_of(module: nn.Module) -> list[ModelHook]:
    """Return the hooks of a module as a flat list."""
    hook = getattr(module, "_hf_hook", None)
    return [] if hook is None else _flat(hook)


def _flat(hook: ModelHook) -> list[ModelHook]:
    if isinstance(hook, SequentialHook):
        return [inner for each in hook.hooks for inner in _flat(each)]
    return [hook]
