"""A forward with something around it, in place of a module's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class WrappedForward:
    """What a subclass calls in its own way.

    It is a plain object in the module's ``__dict__`` that refers to the original bound method, so that no name of a
    parameter or submodule changes, a model can be copied and pickled with it, `inspect.signature` sees the original's
    parameters, and dynamo traces through it.

    Args:
        original: The forward to run.
    """

    is_traceable: bool = True
    """Whether torch can compile it as a whole; otherwise what it runs is compiled, and it stays outside."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self.original = original

    @property
    def __wrapped__(self) -> Callable[..., Any]:
        return self.original

    def __getattr__(self, name: str) -> Any:
        # Functions have more, such as `__code__`, which `torch.export` and `torch.jit.script` read. `__func__` would
        # run without what is around it.
        if name.startswith("__") and name != "__func__":
            return getattr(self.original, name)
        raise AttributeError(f"`{type(self).__name__}` has no attribute `{name}`.", name=name, obj=self)
