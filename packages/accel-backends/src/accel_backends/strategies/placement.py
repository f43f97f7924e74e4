"""Move a model to the device of its process."""

from __future__ import annotations

import itertools

import torch
from torch import nn

from accel_ops.named_tensors import tied_names


def model_devices(model: nn.Module) -> set[torch.device]:
    """Return the devices of the parameters and buffers of ``model``, meta included."""
    return {tensor.device for tensor in itertools.chain(model.parameters(), model.buffers())}


def place_model(model: nn.Module, device: torch.device) -> nn.Module:
    """Move ``model`` to ``device`` and return it; a model that is on it, or on several devices, stays as it is.

    Tied weights stay tied. Between the CPU and most accelerators parameters are moved in place, so that existing
    optimizers keep them; if torch creates new ones (XLA, meta) the caller replaces them in optimizers.
    """
    if model_devices(model) == {device} or is_spread(model):
        return model
    ties = tied_names(model)
    model.to(device)
    for first, *others in ties:
        for name in others:
            _set_parameter(model, name, model.get_parameter(first))
    return model


def _set_parameter(model: nn.Module, name: str, parameter: nn.Parameter) -> None:
    owner, _, attribute = name.rpartition(".")
    model.get_submodule(owner)._parameters[attribute] = parameter


def is_spread(model: nn.Module) -> bool:
    """Whether ``model`` was placed on several devices on purpose, with a device map or by hand."""
    device_map = getattr(model, "hf_device_map", None)
    if device_map is not None:
        return len(set(device_map.values())) > 1
    return len(model_devices(model) - {torch.device("cpu")}) > 1
