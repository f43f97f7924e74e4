"""The tensors of a model that a state dict fills, and the ways to fill them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_bigmodel.tensors.kinds import as_parameter_like
from accel_ops.named_tensors import named_tensors, walk_modules

EXTRA_STATE = "_extra_state"
_PLAIN_SETATTR = nn.Module.__setattr__


@dataclass(slots=True, eq=False)
class Target:
    """One tensor of a model with all its places; more than one if it is tied.

    Args:
        tensor: The tensor before loading.
        places: The modules that hold it, each with its name there.
        names: All its names in the state dict.
        fresh: The tensor that replaced it, if any.
    """

    tensor: torch.Tensor
    places: list[tuple[nn.Module, str]]
    names: list[str]
    fresh: torch.Tensor | None = None

    def fill(self, value: torch.Tensor, *, device: torch.device, dtype: torch.dtype) -> None:
        """Load ``value``, in place if device and dtype stay the same."""
        with torch.no_grad():
            if self.tensor.device == device and self.tensor.dtype == dtype and not self.tensor.is_meta:
                self.tensor.copy_(value)
                return
            # Always copy: `value` may be a read-only mapping of the file.
            fresh = value.to(device=device, dtype=dtype, copy=True)
            self.replace(fresh)

    def memory(self) -> torch.Tensor:
        """Return the tensor itself, to be written to."""
        # A backward pass that saved this tensor must notice the change.
        torch.autograd.graph.increment_version(self.tensor)
        return self.tensor

    def empty(self, dtype: torch.dtype) -> None:
        """Replace the tensor by one of ``dtype`` on the meta device."""
        if not self.tensor.is_meta or self.tensor.dtype != dtype:
            self.replace(torch.empty_like(self.tensor, dtype=dtype, device="meta"))

    def current(self) -> torch.Tensor:
        """Return the tensor that is in the model now."""
        return (self.tensor if self.fresh is None else self.fresh).detach()

    def replace(self, fresh: torch.Tensor) -> None:
        """Put ``fresh`` itself into every place.

        A parameter with values stays the same object, so that optimizers keep it, and gets the memory of ``fresh``.
        """
        is_parameter = isinstance(self.tensor, nn.Parameter)
        if type(self.tensor) is nn.Parameter and not self.tensor.is_meta and not fresh.is_meta:
            if fresh.is_floating_point() == self.tensor.is_floating_point():
                self.tensor.data = fresh
                return
        if is_parameter:
            fresh = as_parameter_like(self.tensor, fresh)
        self.fresh = fresh
        for module, name in self.places:
            if type(module).__setattr__ is _PLAIN_SETATTR:
                members: dict[str, Any] = module._parameters if is_parameter else module._buffers
                members[name] = fresh
            else:
                setattr(module, name, fresh)  # recurrent layers also keep a list of their weights


def targets(model: nn.Module) -> dict[str, Target]:
    """Return the targets by name in the model's state dict; tied names share one target."""
    by_name: dict[str, Target] = {}
    for found in named_tensors(model):
        if found.is_persistent:
            by_name.update(dict.fromkeys(found.names, Target(found.tensor, found.places, found.names)))
    return by_name


def extra_states(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules with extra state, by its name in the state dict."""
    base = nn.Module.get_extra_state
    return {
        f"{path}.{EXTRA_STATE}" if path else EXTRA_STATE: module
        for path, module in walk_modules(model)
        if type(module).get_extra_state is not base
    }
