"""Where the weights of a model are while it does not use them: in memory, in a folder, in the files of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.device_maps import DeviceLookup, DeviceMap
from accel_bigmodel.module_tensors import find_tied_parameters
from accel_bigmodel.offload.folder import INDEX_NAME, offload_state_dict
from accel_bigmodel.offload.placeholders import stored_values
from accel_bigmodel.offload.weights_map import OffloadedWeightsLoader
from accel_state.errors import ConfigError


def weights_on_cpu(
    model: nn.Module, is_wanted: Callable[[str], bool] = lambda _: True
) -> dict[str, torch.Tensor]:
    """Return the weights by name that are wanted, second names and buffers outside the state dict included."""
    moved: dict[int, torch.Tensor] = {}
    found = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    found = [(name, tensor) for name, tensor in found if is_wanted(name)]
    for _, tensor in found:
        if id(tensor) not in moved and not tensor.is_meta:
            moved[id(tensor)] = stored_values(tensor).detach().to("cpu")
    return {name: moved[id(tensor)] for name, tensor in found if id(tensor) in moved}


def weights_away(
    model: nn.Module,
    device_map: DeviceMap,
    kept_away: Sequence[str],
    state_dict: Mapping[str, torch.Tensor] | None,
    offload_dir: str | os.PathLike[str] | None,
    offload_index: Mapping[str, Any] | None,
    ties: Sequence[Sequence[str]],
) -> Mapping[str, Any] | None:
    """Return where the weights of offloaded modules are, written to disk first where they have to be.

    Args:
        model: Looked at only.
        device_map: As for `dispatch_model`, and so are the next of the same name.
        kept_away: What of the map is not where it runs: ``"disk"``, and ``"cpu"`` if that is not the main device.
        state_dict: See there.
        offload_dir: See there.
        offload_index: See there.
        ties: What `find_tied_parameters` says of the model.

    Raises:
        ConfigError: If weights on disk have nowhere to be.
    """
    if not any(str(device) in kept_away for device in device_map.values()):
        return None
    devices = DeviceLookup(device_map)
    in_memory = dict(
        weights_on_cpu(model, _wanted(devices, kept_away, ties)) if state_dict is None else state_dict
    )
    # A tied weight that stays in memory under one of its names needs no place on disk under the others.
    stays = {
        n for group in ties if any(str(devices[o]) == "cpu" and o in in_memory for o in group) for n in group
    }
    on_disk = [name for name, device in device_map.items() if str(device) == "disk"]
    if on_disk and offload_index is None:
        to_write = once(model, _of_modules(in_memory, devices, without=stays))
        if offload_dir is None and to_write and state_dict is None:
            raise ConfigError(
                f"`device_map` puts {', '.join(f'`{name}`' for name in on_disk[:5])} on disk, but there is no folder "
                "for it. Give `offload_dir`, or an `offload_index` that says where the weights are."
            )
        if offload_dir is not None and not Path(offload_dir, INDEX_NAME).is_file() and stays and not to_write:
            offload_index = {}
        elif offload_dir is not None and (to_write or not Path(offload_dir, INDEX_NAME).is_file()):
            offload_state_dict(offload_dir, to_write)
    if (on_disk and offload_dir is not None) or offload_index is not None:
        loader = OffloadedWeightsLoader(None, offload_dir, offload_index)
        leaving = _of_modules(in_memory, devices, without=stays)
        for name in leaving.keys() - {name for name in once(model, leaving) if name not in loader}:
            del in_memory[name]
        return with_ties(model, OffloadedWeightsLoader(in_memory, offload_dir, loader.index))
    return with_ties(model, OffloadedWeightsLoader(in_memory))


def _wanted(
    devices: DeviceLookup, kept_away: Sequence[str], ties: Sequence[Sequence[str]]
) -> Callable[[str], bool]:
    """Return whether a weight, by name, is kept in memory or on disk, or shared with what is."""
    tied = {name for group in ties for name in group}

    def is_wanted(name: str) -> bool:
        device = str(devices[name])
        return device in kept_away or (device == "cpu" and name in tied)

    return is_wanted


def _of_modules(
    weights: Mapping[str, torch.Tensor], devices: DeviceLookup, *, without: set[str]
) -> dict[str, torch.Tensor]:
    """Return the weights that go to disk."""
    return {n: tensor for n, tensor in weights.items() if str(devices[n]) == "disk" and n not in without}


def once(model: nn.Module, weights: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``weights``, tied ones under the first of their names only."""
    second = {n for group in find_tied_parameters(model) for n in [n for n in group if n in weights][1:]}
    return {name: tensor for name, tensor in weights.items() if name not in second}


def with_ties(model: nn.Module, loader: OffloadedWeightsLoader) -> OffloadedWeightsLoader:
    """Let every name of a tied weight find it, in memory if it is there, whichever of them it is stored under.

    Where it is stored under several, which a folder may be of earlier models, one of them counts.
    """
    index, state = dict(loader.index), dict(loader.state_dict)
    for group in find_tied_parameters(model):
        known = next((name for name in [*(n for n in group if n in state), *group] if name in loader), None)
        for name in group:
            if known is None or name == known:
                continue
            if known in state:
                state[name] = state[known]
            elif "safetensors_file" in index[known]:
                index[name] = {"weight_name": known, **index[known]}
            else:
                state[name] = loader[known]
    return OffloadedWeightsLoader(state, loader.save_folder, index)
