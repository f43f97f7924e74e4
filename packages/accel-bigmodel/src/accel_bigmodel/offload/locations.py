"""Where offloaded weights are stored: in memory, in an offload folder, or in the files of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.offload.store import INDEX_NAME, OffloadedWeightsLoader, offload_state_dict
from accel_bigmodel.planning.device_maps import DeviceLookup, DeviceMap
from accel_bigmodel.tensors.module_tensors import get_non_persistent_buffers
from accel_ops.named_tensors import named_tensors, tied_names
from accel_state.errors import ConfigError


@dataclass(frozen=True)
class WeightSource:
    """Where the caller stores the weights; the fields are arguments of `dispatch_model`."""

    state_dict: Mapping[str, torch.Tensor] | None
    offload_dir: str | os.PathLike[str] | None
    offload_index: Mapping[str, Any] | None


@dataclass(frozen=True)
class Placement:
    """The device of each weight.

    Args:
        device_map: As for `dispatch_model`.
        offloaded_devices: Values in the map that mean offloading: ``"disk"``, and ``"cpu"`` unless that is the main
            device.
        ties: The result of `find_tied_parameters` for the model.
    """

    device_map: DeviceMap
    offloaded_devices: Sequence[str]
    ties: Sequence[Sequence[str]]

    def device(self, name: str) -> str:
        """Return the device of a weight, ``"cpu"`` or ``"disk"``."""
        return str(self._devices[name])

    def is_offloaded(self, name: str) -> bool:
        """Whether a weight is offloaded, or tied and on the CPU."""
        return self.device(name) in self.offloaded_devices or (
            self.device(name) == "cpu" and name in self._tied
        )

    def on_disk(self) -> list[str]:
        """Return the entries of the map that are on disk."""
        return [name for name, device in self.device_map.items() if str(device) == "disk"]

    @cached_property
    def _devices(self) -> DeviceLookup:
        return DeviceLookup(self.device_map)

    @cached_property
    def _tied(self) -> frozenset[str]:
        return frozenset(name for group in self.ties for name in group)


def weights_on_cpu(
    model: nn.Module, is_wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, torch.Tensor]:
    """Return the wanted weights by name, including aliases of tied ones.

    Weights on the meta device, those that are already offloaded, and non-persistent buffers are left out.
    """
    found: dict[str, torch.Tensor] = {}
    left_out = get_non_persistent_buffers(model, recurse=True, fqns=True)
    for named in named_tensors(model):
        names = [name for name in named.names if name not in left_out and is_wanted(name)]
        if names and not named.tensor.is_meta:
            found.update(dict.fromkeys(names, in_memory(named.tensor)))
    return found


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor on the CPU, without a copy if they are there already."""
    values = tensor.detach().as_subclass(torch.Tensor).to("cpu")
    if values.is_inference():
        with torch.inference_mode(False):
            values = values.clone()  # an inference tensor could never be written to again
    return values


def offloaded_weights(model: nn.Module, placement: Placement, source: WeightSource) -> Mapping[str, Any]:
    """Return the stored weights of offloaded modules; those that belong on disk are written there first.

    Args:
        model: The model, not changed.
        placement: Which weights are offloaded.
        source: Where weights may be stored already.

    Raises:
        ConfigError: If weights go to disk and there is no folder for them.
    """
    given = source.state_dict
    in_memory = dict(weights_on_cpu(model, placement.is_offloaded) if given is None else given)
    for_disk = _for_disk(placement, in_memory)
    to_write = without_duplicates(model, for_disk)
    index = source.offload_index
    if placement.on_disk() and index is None:
        if source.offload_dir is None and to_write and given is None:
            raise ConfigError(_no_folder(placement))
        if source.offload_dir is not None:
            if to_write:
                offload_state_dict(source.offload_dir, to_write)
            index = None if Path(source.offload_dir, INDEX_NAME).is_file() else {}
    folder = source.offload_dir if placement.on_disk() else None
    if index is None and folder is None:
        return with_ties(model, OffloadedWeightsLoader(in_memory))
    loader = OffloadedWeightsLoader(None, folder, index)
    for name in for_disk:
        if name in loader or name not in to_write:
            del in_memory[name]
    return with_ties(model, loader.replaced(in_memory, loader.index))


def _for_disk(placement: Placement, in_memory: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights in memory that belong on disk.

    A tied weight that stays in memory under one of its names is not written to disk under the others.
    """
    staying = {
        name
        for group in placement.ties
        if any(placement.device(other) == "cpu" and other in in_memory for other in group)
        for name in group
    }
    return {
        n: tensor for n, tensor in in_memory.items() if placement.device(n) == "disk" and n not in staying
    }


def _no_folder(placement: Placement) -> str:
    names = ", ".join(f"`{name}`" for name in placement.on_disk()[:5])
    return (
        f"`device_map` puts {names} on disk, but there is no folder for it. Give `offload_dir`, or the `offload_index` "
        "of weights that are stored already."
    )


def without_duplicates(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``weights``, with tied weights under the first of their names only."""
    second = {n for group in tied_names(model) for n in [n for n in sorted(group) if n in weights][1:]}
    return {name: tensor for name, tensor in weights.items() if name not in second}


def with_ties(model: nn.Module, loader: OffloadedWeightsLoader) -> OffloadedWeightsLoader:
    """Make a tied weight available under all of its names, preferably from memory.

    If it is stored under several names, as in a folder of earlier models, one of them is used for all.
    """
    index, state = dict(loader.index), dict(loader.state_dict)
    for group in tied_names(model):
        group = sorted(group)
        known = next((name for name in [*(n for n in group if n in state), *group] if name in loader), None)
        for name in group:
            if known is None or name == known:
                continue
            if known in state:
                state[name] = state[known]
            else:
                index[name] = {"weight_name": known, **index[known]}
    return loader.replaced(state, index)
