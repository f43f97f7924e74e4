"""Protect dispatched models from being moved as a whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.attaching import hooks_of
from accel_bigmodel.offload.state import has_offloaded_params
from accel_state.devices.vendors import known_vendors
from accel_state.errors import StateError
from accel_state.user_warnings import warn_user


class GuardedMove:
    """Replaces a method that would move a dispatched model."""

    def __init__(self, model: nn.Module, name: str) -> None:
        self.model, self.name = model, name
        self.__name__ = name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.name == "to" and torch._C._nn._parse_to(*args, **kwargs)[0] is None:
            return type(self.model).to(self.model, *args, **kwargs)  # it is converted, and not moved
        if any(has_offloaded_params(module) for module in self.model.modules()):
            raise StateError(
                "You can't move a model that has some modules offloaded to cpu or disk. Remove the hooks first with "
                "`remove_hook_from_submodules`, or dispatch it with another `device_map`."
            )
        if any(hooks_of(module) for module in self.model.modules()):
            warn_user(
                "You shouldn't move a model that is dispatched using accelerate hooks: its parts no longer match "
                "`hf_device_map`, and are moved back in the next forward pass. "
                "Let them stay where `device_map` puts them.",
                main_process_only=False,
            )
        return getattr(type(self.model), self.name)(self.model, *args, **kwargs)


def guard_moves(model: nn.Module) -> None:
    """Make ``model.to`` and similar methods warn while the model has hooks, or refuse where weights are offloaded."""
    for name in ("to", "mtia", "ipu", *(vendor.name for vendor in known_vendors())):
        if hasattr(nn.Module, name) and name != "cpu":
            setattr(model, name, GuardedMove(model, name))
