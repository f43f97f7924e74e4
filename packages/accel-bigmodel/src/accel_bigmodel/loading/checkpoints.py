"""Loading checkpoints, whole or sharded, into state dicts and into models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.loading.filling import Destination, Filling, collection_paused, shapes_in
from accel_bigmodel.loading.matching import match
from accel_bigmodel.loading.over_processes import holds_dtensors, load_over_processes
from accel_bigmodel.loading.targets import extra_states, targets
from accel_bigmodel.planning.device_maps import DeviceMap, check_covered, check_device_map, device_of
from accel_bigmodel.tensors.dtypes import as_torch_dtype
from accel_checkpoint.formats.safetensor_ranges import read_layout
from accel_checkpoint.formats.weight_files import checkpoint_files, opener
from accel_ops.nested.placement import send_to_device
from accel_state.errors import CheckpointError, ConfigError


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], device_map: DeviceMap | None = None
) -> dict[str, Any]:
    """Return the state dict in one weight file; second names of tied weights are in it too.

    Nothing in the file can run: safetensors, or ``torch.load`` with ``weights_only``.

    Args:
        checkpoint_file: A safetensors file, by its name's end, or one that ``torch.save`` wrote.
        device_map: Where each module's tensors go; ``"disk"`` leaves them on the CPU, and so does no map.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds more than tensors and plain values.
        ConfigError: If ``device_map`` says nothing of some of the names.
    """
    path = Path(checkpoint_file)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint file at `{path}`.")
    with opener(path)(path) as reader:
        names = list(reader.keys())
        if device_map is None:
            return {name: reader.read(name) for name in names}
        check_covered(names, device_map)
        # An extra state may hold tensors at any depth.
        return {name: send_to_device(reader.read(name), _device(name, device_map)) for name in names}


def load_checkpoint_in_model(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: DeviceMap | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    dtype: str | torch.dtype | None = None,
    offload_state_dict: bool = False,
    offload_buffers: bool = False,
    keep_in_fp32_modules: Sequence[str] | None = None,
    offload_8bit_bnb: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    mmap: bool = False,
) -> None:
    """Load a checkpoint into ``model``, straight into the final tensors, without ever holding a whole state dict.

    Names and shapes are compared before the first tensor is touched. Parameters that are where they should be
    are filled in place, so that optimizers keep them; those on the meta device are replaced, ties and
    ``requires_grad`` kept.

    Args:
        model: Real or a skeleton from `init_empty_weights`.
        checkpoint: A weight file, an index (``.json``), or a folder with one of them.
        device_map: Where each module's tensors go; must cover the model. Without it every tensor stays on its
            device, those on meta go to the CPU. What goes to ``"disk"`` stays on the meta device until
            `dispatch_model` gets the same folder.
        offload_folder: For ``"disk"``. Weights in safetensors files stay where they are, only their places are
            noted; others (``.bin``, another dtype) are written to it.
        dtype: What floating-point weights are converted to; by default to what the model has.
        offload_state_dict: Changes nothing: the peak of memory that it lowers does not arise here.
        offload_buffers: Leave buffers of modules on disk there too; else they go to the CPU.
        keep_in_fp32_modules: Modules (by name, or part of a dotted name) whose weights become float32 rather
            than ``dtype``.
        offload_8bit_bnb: Refused: `load_and_quantize_model` quantises what goes to disk.
        strict: Refuse weights that the model does not know or the checkpoint does not have; else they are
            named in a warning. Wrong shapes are always refused, and so is a checkpoint without a common name.
        full_state_dict: For models of DTensors: whether the checkpoint holds whole tensors, the same for all
            processes; else each process names the file that it wrote of its own parts with ``torch.save``.
        broadcast_from_rank0: Only the first process reads; it sends the weights to the others, and all must call this.
        mmap: Map safetensors files instead of reading them, for what goes to the CPU in its stored dtype: takes no
            time, reads what is used, and processes of one machine share the memory. Written weights become private.

    Raises:
        CheckpointError: If the checkpoint is missing, damaged, or does not fit; the model is then untouched.
        ConfigError: If ``device_map`` does not fit the model, or there is no folder for weights on disk.
    """
    destination = Destination(
        device_map, None if dtype is None else as_torch_dtype(dtype), tuple(keep_in_fp32_modules or ()),
        folder=None if offload_folder is None else Path(offload_folder), offload_buffers=offload_buffers,
        may_map=mmap,
    )  # fmt: skip
    if offload_8bit_bnb:
        raise ConfigError(
            "`offload_8bit_bnb` has no effect here. `load_and_quantize_model` quantises weights that go to disk."
        )
    if broadcast_from_rank0 or holds_dtensors(model):
        if device_map is not None:
            raise ConfigError(
                "`device_map` says nothing where the weights are spread over processes, or one process reads for all. "
                "Leave it out; each process keeps its part where the model has it."
            )
        load_over_processes(
            model,
            checkpoint,
            destination,
            is_full=full_state_dict,
            broadcast=broadcast_from_rank0,
            strict=strict,
        )
        return
    if device_map is not None and "disk" in device_map.values() and offload_folder is None:
        raise ConfigError(
            "`device_map` leaves weights on disk. Give `offload_folder`, where their places are noted."
        )
    load_weights(model, checkpoint, destination, strict=strict)


def load_weights(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    destination: Destination,
    *,
    strict: bool,
    ignored: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Do what `load_checkpoint_in_model` says in this process, and return the index of what stays on disk.

    Names in the checkpoint that end with one of ``ignored`` are no weights.
    """
    if destination.device_map is not None:
        check_device_map(model, destination.device_map)
    files = checkpoint_files(checkpoint)
    with collection_paused():
        places, extras = targets(model), extra_states(model)
        layouts = {file.path: read_layout(file.path) for file in files if file.path.suffix == ".safetensors"}
        shapes = {
            name: shape
            for file in files
            for name, shape in shapes_in(file, layouts.get(file.path)).items()
            if not name.endswith(ignored)
        }
        match(
            {**{name: place.tensor.shape for name, place in places.items()}, **dict.fromkeys(extras)},
            shapes,
            ties=[place.names for place in places.values() if len(place.names) > 1],
        ).settle(checkpoint, strict=strict)
        filling = Filling(model, places, extras, destination)
        for file in files:
            filling.fill_from(file, layouts.get(file.path))
        filling.finish()
    return filling.offload_index


def _device(name: str, device_map: DeviceMap) -> torch.device:
    found = device_of(name, device_map)
    return torch.device("cpu") if found in (None, "disk") else torch.device(found)
