"""A model as it was before its stage was sharded: without the hooks that gather parameters and cut layers."""

from __future__ import annotations

from collections.abc import Container, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")


class AddedHooks:
    """Which hooks of a model's forward were added in a block, to do without them in another.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._added: dict[tuple[nn.Module, str], set[int]] = {}

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note the hooks that are added in the block."""
        before = {place: set(hooks) for place, hooks in self._all()}
        yield
        for place, hooks in self._all():
            if new := hooks.keys() - before.get(place, set()):
                self._added[place] = self._added.get(place, set()) | new

    @contextmanager
    def left_out(self, modules: Container[nn.Module] | None = None) -> Iterator[None]:
        """Let the model run without them in the block, or without those of some modules; other hooks stay."""
        with ExitStack() as stack:
            for (module, name), added in self._added.items():
                if modules is not None and module not in modules:
                    continue
                hooks = getattr(module, name)
                stack.callback(setattr, module, name, hooks)
                kept = [(number, hook) for number, hook in hooks.items() if number not in added]
                setattr(module, name, type(hooks)(kept))
            yield

    def has_any(self, module: nn.Module) -> bool:
        """Tell whether some were added to ``module`` itself."""
        return any((module, name) in self._added for name in _HOOKS)

    def _all(self) -> Iterator[tuple[tuple[nn.Module, str], Any]]:
        for module in self._model.modules():
            for name in _HOOKS:
                yield (module, name), getattr(module, name)
