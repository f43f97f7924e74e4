"""A forward with something around it, in place of a module's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from torch import nn


class WrappedForward:
    """What a subclass calls in its own way.

    It is a plain object in the module's ``__dict__`` that refers to the original bound method, so that no name of a
    parameter or submodule changes, a model can be copied and pickled with it, `inspect.signature` sees the original's
    parameters, and dynamo traces through it.

    Args:
        original: The forward to run.
    """

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.original

    @property
    def __name__(self) -> str:
        return getattr(self.original, "__name__", "forward")


@runtime_checkable
class RebindableForward(Protocol):
    """The ability of forwards that a shallow copy of their model can have too."""

    def rebound(self, rebind: Callable[[Any], Any], copied: nn.Module) -> RebindableForward:
        """Return one around ``rebind(original)`` for ``copied``."""
