"""Access to the values of offloaded models outside of their forward pass."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, MutableMapping
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from accel_bigmodel.hooks.align import AlignDevicesHook
from accel_bigmodel.hooks.base import hooks_of
from accel_bigmodel.offload.placeholders import stored_values, weight_of
from accel_bigmodel.offload.store import OffloadedWeightsLoader
from accel_bigmodel.tensors import set_module_tensor_to_device


def has_offloaded_params(module: nn.Module) -> bool:
    """Whether direct weights of ``module`` are offloaded between forward passes."""
    return any(isinstance(hook, AlignDevicesHook) and hook.offload for hook in hooks_of(module))


def get_state_dict_offloaded_model(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of a model; its offloaded weights stay in memory or mapped from disk."""
    return dict(model.state_dict())


def get_state_dict_from_offload(
    module: nn.Module,
    module_name: str,
    state_dict: MutableMapping[str, Any],
    device_to_put_offload: int | str | torch.device = "cpu",
) -> MutableMapping[str, Any]:
    """Insert the offloaded weights of one module into a state dict, on a device, and return it.

    Args:
        module: The module.
        module_name: The full dotted name of one of its weights.
        state_dict: Changed in place: all weights of the module get their values.
        device_to_put_offload: The device of the values.
    """
    root = module_name.rpartition(".")[0]
    for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
        full = f"{root}.{name}" if root else name
        if full in state_dict and weight_of(tensor) is not None:
            state_dict[full] = stored_values(tensor).to(device_to_put_offload)
    return state_dict


def extract_submodules_state_dict(
    state_dict: Mapping[str, Any], submodule_names: list[str]
) -> dict[str, Any]:
    """Return the entries of a state dict that belong to one of ``submodule_names``."""
    wanted = set(submodule_names)
    return {
        name: value
        for name, value in state_dict.items()
        if "" in wanted or not wanted.isdisjoint(accumulate(name.split("."), "{}.{}".format))
    }


def load_offloaded_weights(
    model: nn.Module, index: Mapping[str, Any] | None, offload_folder: str | os.PathLike[str]
) -> None:
    """Load the weights in ``index`` back into ``model``, on the CPU."""
    weights = OffloadedWeightsLoader(None, offload_folder, index or {})
    for name in weights:
        set_module_tensor_to_device(model, name, "cpu", value=weights[name].clone())


@contextlib.contextmanager
def align_module_device(
    module: nn.Module, execution_device: torch.device | str | int | None = None
) -> Iterator[None]:
    """Give the direct weights of ``module`` their values, on one device, within this context. Writes are stored.

        with align_module_device(model.head):
            model.head.weight.mul_(0.5)

    Args:
        module: A module, offloaded or not.
        execution_device: The device. Default: the hook's execution device, or the device of the weights.
    """
    align = [hook for hook in hooks_of(module) if isinstance(hook, AlignDevicesHook) and hook.offload]
    if align:
        with _values_on(align[0], execution_device):
            yield
        return
    if execution_device is None:
        yield
        return
    before = [(parameter, parameter.device) for parameter in module.parameters(recurse=False)]
    try:
        for parameter, _ in before:
            parameter.data = parameter.data.to(
                execution_device
            )  # it stays the same object, for ties and optimizers
        yield
    finally:
        for parameter, device in before:
            parameter.data = parameter.data.to(device)


@contextlib.contextmanager
def _values_on(hook: AlignDevicesHook, device: torch.device | str | int | None) -> Iterator[None]:
    weights = hook.weights
    devices = [weight.device for weight in weights]
    try:
        if device is not None:
            for weight in weights:
                weight.use_on(torch.device(device))
        hook.onload_weights()
        try:
            yield
        finally:
            for weight in weights:
                weight.store_live_if_changed()
            hook.offload_weights()
    finally:
        for weight, usual in zip(weights, devices, strict=True):
            weight.use_on(usual)
