"""A model that has been spread over devices is not moved as a whole by mistake."""

from __future__ import annotations

import warnings
from typing import Any

from torch import nn

from accel_state.errors import StateError

_MOVES = ("to", "cuda", "npu", "xpu", "mlu", "sdaa", "musa")


class GuardedMove:
    """Stands in place of a method of a dispatched model that would move it."""

    def __init__(self, model: nn.Module, name: str, *, refuses: bool) -> None:
        self.model, self.name, self.refuses = model, name, refuses
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.refuses:
            raise StateError(
                "You can't move a model that has some modules offloaded to cpu or disk. Remove the hooks first with "
                "`remove_hook_from_submodules`, or dispatch it with another `device_map`."
            )
        warnings.warn(
            "You shouldn't move a model that is dispatched using accelerate hooks: its parts no longer lie where "
            "`hf_device_map` says, and are moved back in the next forward.",
            stacklevel=2,
        )
        return getattr(type(self.model), self.name)(self.model, *args, **kwargs)


def guard_moves(model: nn.Module, *, has_offloaded: bool) -> None:
    """Make ``model.to`` and its kin warn, or refuse where weights are offloaded."""
    for name in _MOVES:
        if hasattr(type(model), name):
            setattr(model, name, GuardedMove(model, name, refuses=has_offloaded))
