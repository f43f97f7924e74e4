"""The places of a model that a state dict fills, and how a tensor gets into one of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel_bigmodel.placing import as_parameter_like

EXTRA_STATE = "_extra_state"


@dataclass(frozen=True, slots=True)
class Target:
    """All places that hold one tensor; more than one where weights are tied."""

    tensor: torch.Tensor
    places: list[tuple[nn.Module, str]]
    names: list[str]

    def fill(self, value: torch.Tensor, *, device: torch.device, dtype: torch.dtype) -> None:
        """Give every place the values of ``value``: in place where the tensor stays what and where it is."""
        with torch.no_grad():
            if self.tensor.device == device and self.tensor.dtype == dtype and not self.tensor.is_meta:
                self.tensor.copy_(value)
                return
            # A copy even where nothing changes: `value` may be a read-only map of the file.
            fresh = value.to(device=device, dtype=dtype, copy=True)
            self.replace(fresh)

    def memory(self) -> torch.Tensor | None:
        """Return the tensor itself if a file can be read straight into it, which it then must."""
        tensor = self.tensor
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not is_wrapped(tensor):
            # Whoever saved this tensor for a backward must hear that it changes.
            torch.autograd.graph.increment_version(tensor)
            return tensor
        return None

    def empty(self, dtype: torch.dtype) -> None:
        """Leave every place without values, as a tensor of ``dtype`` on the meta device."""
        if not self.tensor.is_meta or self.tensor.dtype != dtype:
            self.replace(torch.empty_like(self.tensor, dtype=dtype, device="meta"))

    def current(self) -> torch.Tensor:
        """Return the tensor that is in these places now."""
        module, name = self.places[0]
        found: torch.Tensor = getattr(module, name)
        return found.detach()

    def replace(self, fresh: torch.Tensor) -> None:
        """Put ``fresh`` itself into every place, as a parameter where there was one."""
        parameter = self.tensor
        is_parameter = isinstance(parameter, nn.Parameter)
        if is_parameter:
            fresh = as_parameter_like(parameter, fresh)
        for module, name in self.places:
            if type(module).__setattr__ is nn.Module.__setattr__:
                members: dict[str, Any] = module._parameters if is_parameter else module._buffers
                members[name] = fresh
            else:
                setattr(module, name, fresh)  # recurrent layers keep a list of their weights beside


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a subclass that need not lie in memory as it looks."""
    return type(tensor) is not torch.Tensor and type(tensor) is not nn.Parameter


def targets(model: nn.Module) -> dict[str, Target]:
    """Return what each name of the model's state dict stands for; names of tied weights share one target."""
    by_tensor: dict[int, Target] = {}
    by_name: dict[str, Target] = {}
    for name, module, inner, tensor in _state_tensors(model):
        target = by_tensor.setdefault(id(tensor), Target(tensor, [], []))
        if (module, inner) not in target.places:
            target.places.append((module, inner))
        target.names.append(name)
        by_name[name] = target
    return by_name


def extra_states(model: nn.Module) -> dict[str, nn.Module]:
    """Return the modules that keep a state of their own beside tensors, by its name in the state dict."""
    base = nn.Module.get_extra_state
    return {
        f"{prefix}.{EXTRA_STATE}" if prefix else EXTRA_STATE: module
        for prefix, module in model.named_modules(remove_duplicate=False)
        if type(module).get_extra_state is not base
    }


def _state_tensors(model: nn.Module) -> Iterator[tuple[str, nn.Module, str, torch.Tensor]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        persistent = {k: v for k, v in module._buffers.items() if k not in module._non_persistent_buffers_set}
        for name, tensor in [*module._parameters.items(), *persistent.items()]:
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, module, name, tensor
