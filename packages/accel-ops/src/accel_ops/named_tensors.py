"""The tensors of a model with all their names: one walk that detects tied weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(slots=True, eq=False)
class NamedTensor:
    """One parameter or buffer of a model; more than one name means that it is tied.

    Args:
        tensor: The parameter or buffer.
        names: Its dotted names, in the order of the model.
        places: The modules that have it, each once, with its attribute name there.
        is_persistent: Whether it is part of the state dict under any name.
    """

    tensor: torch.Tensor
    names: list[str]
    places: list[tuple[nn.Module, str]]
    is_persistent: bool

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, not a buffer."""
        return isinstance(self.tensor, nn.Parameter)


def walk_modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return what ``model.named_modules(remove_duplicate=False)`` yields, for models of many thousand modules.

    ``named_modules`` passes each name through one generator per level, which is slow for such models.
    """
    modules: list[tuple[str, nn.Module]] = []
    _walk("", model, modules)
    return modules


def named_tensors(model: nn.Module, *, include_buffers: bool = True) -> list[NamedTensor]:
    """Return every parameter and buffer of ``model`` once, with all its names.

    For tensors of any shape and device, meta included: a tie is two names for one tensor object, not equal values.

    Args:
        model: Not changed.
        include_buffers: Include buffers, persistent or not.
    """
    by_tensor: dict[int, NamedTensor] = {}
    for path, module in walk_modules(model):
        prefix = f"{path}." if path else ""
        for key, parameter in module._parameters.items():
            if parameter is not None:
                _add(by_tensor, parameter, module, key, prefix, is_persistent=True)
        if include_buffers and module._buffers:
            non_persistent = module._non_persistent_buffers_set
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    _add(by_tensor, buffer, module, key, prefix, is_persistent=key not in non_persistent)
    return list(by_tensor.values())


def tied_names(model: nn.Module) -> list[list[str]]:
    """Return the names of each tied parameter, in the order of the model."""
    return [each.names for each in named_tensors(model, include_buffers=False) if len(each.names) > 1]


def _add(
    by_tensor: dict[int, NamedTensor],
    tensor: torch.Tensor,
    module: nn.Module,
    key: str,
    prefix: str,
    *,
    is_persistent: bool,
) -> None:
    known = by_tensor.get(id(tensor))
    if known is None:
        by_tensor[id(tensor)] = NamedTensor(tensor, [prefix + key], [(module, key)], is_persistent)
        return
    known.names.append(prefix + key)
    known.is_persistent = known.is_persistent or is_persistent
    if (module, key) not in known.places:
        known.places.append((module, key))


def _walk(name: str, module: nn.Module, modules: list[tuple[str, nn.Module]]) -> None:
    modules.append((name, module))
    prefix = f"{name}." if name else ""
    for key, child in module._modules.items():
        if child is not None:
            _walk(prefix + key, child, modules)
