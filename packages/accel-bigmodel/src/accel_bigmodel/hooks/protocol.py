"""The protocol of hooks, and a sequence of hooks."""

from __future__ import annotations

from typing import Any

from torch import nn


class ModelHook:
    """Code that runs before and after the forward of a module; subclass it and `add_hook_to_module`."""

    no_grad = False

    def init_hook(self, module: nn.Module) -> nn.Module:
        """Prepare ``module`` when the hook is added, and return it."""
        return module

    def attached(self, module: nn.Module) -> None:
        """Complete `init_hook`, also where a library that adds the hook has replaced that by nothing."""

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
            getattr(hook, "attached", lambda _: None)(module)

    def pre_forward(
        self, module: nn.Module, *args: Any, **kwargs: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        entered: list[ModelHook] = []
        try:
            for hook in self.hooks:
                args, kwargs = hook.pre_forward(module, *args, **kwargs)
                entered.append(hook)
        except BaseException:
            for hook in reversed(entered):
                getattr(hook, "after_error", lambda _: None)(module)
            raise
        return args, kwargs

    def post_forward(self, module: nn.Module, output: Any) -> Any:
        for hook in self.hooks:
            output = hook.post_forward(module, output)
        return output

    def after_error(self, module: nn.Module) -> None:
        for hook in reversed(self.hooks):
            getattr(hook, "after_error", lambda _: None)(module)

    def detach_hook(self, module: nn.Module) -> nn.Module:
        for hook in self.hooks:
            module = hook.detach_hook(module)
        return module
