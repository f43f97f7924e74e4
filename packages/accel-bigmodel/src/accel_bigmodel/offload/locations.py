"""Where offloaded weights are stored: in memory, in an offload folder, or in the files of a checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accel_bigmodel.offload.store import (
    INDEX_NAME,
    OffloadedWeightsLoader,
    offload_state_dict,
    read_offload_index,
)
from accel_bigmodel.planning.device_maps import DeviceLookup, DeviceMap
from accel_ops.named_tensors import NamedTensor
from accel_state.errors import ConfigError


def offloaded_weights(
    tensors: Sequence[NamedTensor],
    device_map: DeviceMap,
    *,
    state_dict: Mapping[str, torch.Tensor] | None = None,
    folder: str | os.PathLike[str] | None = None,
    index: Mapping[str, Any] | None = None,
    offloaded_devices: Sequence[str] = ("cpu", "disk"),
) -> OffloadedWeightsLoader:
    """Return the stored weights of offloaded modules; those on disk are written there first.

    A tied weight is stored once, in memory if one of its names is on the CPU, under all of its names. Buffers that
    state dicts leave out, and weights without values, are left out.

    Args:
        tensors: The tensors of the model.
        device_map: As for `dispatch_model`.
        state_dict: As for `dispatch_model`, and so are the next two: where weights may be stored already.
        folder: See there, ``offload_dir``.
        index: See there, ``offload_index``.
        offloaded_devices: Values in the map that mean offloading: ``"disk"``, and ``"cpu"`` unless that is the main
            device. Tied weights on the CPU are always stored.

    Raises:
        ConfigError: If weights go to disk and there is no folder for them.
    """
    given, lookup = state_dict, DeviceLookup(device_map)
    groups = [sorted(named.names) for named in tensors]
    state, for_disk = dict(given or {}), dict[str, list[str]]()
    for named, names in zip(tensors, groups, strict=True):
        devices = {name: str(lookup[name]) for name in names}
        if given is not None:
            stored = [name for name in names if name in given]
        elif named.tensor.is_meta or not named.is_persistent:
            continue
        else:
            wanted = {*offloaded_devices, "cpu"} if len(names) > 1 else offloaded_devices
            stored = [name for name in names if devices[name] in wanted]
            if stored:
                state.update(dict.fromkeys(stored, in_memory(named.tensor)))
        on_disk = [name for name in stored if devices[name] == "disk"]
        if on_disk and not any(devices[name] == "cpu" for name in stored):
            for_disk[on_disk[0]] = on_disk
    entries = [name for name, device in device_map.items() if str(device) == "disk"]
    if entries and index is None:
        if folder is not None:
            offload_state_dict(folder, {name: state[name] for name in for_disk})
            index = read_offload_index(folder) if Path(folder, INDEX_NAME).is_file() else None
        elif for_disk and given is None:
            raise ConfigError(
                f"`device_map` puts {', '.join(f'`{name}`' for name in entries[:5])} on disk, but there is no folder "
                "for it. Give `offload_dir`, or the `offload_index` of weights that are stored already."
            )
    on_disk_index = dict(index or {})
    for first, names in for_disk.items():
        if first in on_disk_index:
            for name in names:
                del state[name]
    for names in groups:
        if known := [n for n in names if n in state]:
            state.update(dict.fromkeys(names, state[known[0]]))
        elif known := [n for n in names if n in on_disk_index]:
            entry = {"weight_name": known[0], **on_disk_index[known[0]]} if len(names) > 1 else None
            on_disk_index.update({name: entry for name in names if name != known[0]})
    return OffloadedWeightsLoader(state, folder if entries else None, on_disk_index)


def in_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a tensor on the CPU, without a copy if they are there already."""
    values = tensor.detach().as_subclass(torch.Tensor).to("cpu")
    if values.is_inference():
        with torch.inference_mode(False):
            values = values.clone()  # an inference tensor could never be written to again
    return values
