"""Load a checkpoint and dispatch the model, in one call."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.dispatching.dispatch import dispatch_model
from accel_bigmodel.loading.checkpoints import load_checkpoint_in_model, load_weights
from accel_bigmodel.loading.distributed import holds_dtensors
from accel_bigmodel.loading.filling import Destination
from accel_bigmodel.planning.allocation import infer_auto_device_map
from accel_bigmodel.planning.device_maps import DeviceMap
from accel_bigmodel.planning.max_memory import MaxMemory, get_balanced_memory
from accel_bigmodel.tensors.dtypes import as_torch_dtype
from accel_state.errors import UnknownNameError

MODES = ("auto", "balanced", "balanced_low_0", "sequential")


def load_checkpoint_and_dispatch(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    device_map: str | Mapping[str, int | str | torch.device] | None = None,
    max_memory: MaxMemory | None = None,
    no_split_module_classes: Sequence[str] | None = None,
    offload_folder: str | os.PathLike[str] | None = None,
    offload_buffers: bool = False,
    dtype: str | torch.dtype | None = None,
    offload_state_dict: bool | None = None,
    skip_keys: str | Sequence[str] | None = None,
    preload_module_classes: Sequence[str] | None = None,
    force_hooks: bool = False,
    strict: bool = False,
    full_state_dict: bool = True,
    broadcast_from_rank0: bool = False,
    *,
    mmap: bool = False,
    prefetch: bool = True,
) -> nn.Module:
    """Load a checkpoint into ``model``, distribute it over the devices, and make it ready to run.

    Offloaded weights are read from their safetensors files, which must not be moved. Those that have none are written
    to ``offload_folder``, and those of another ``dtype``, too; without a folder these are converted at each use.

    Args:
        model: Usually a skeleton from `init_empty_weights`.
        checkpoint: A weight file, an index (``.json``), or a folder with one of them.
        device_map: A map, or how to compute one: ``"auto"`` and ``"balanced"`` distribute evenly, ``"balanced_low_0"``
            keeps the first accelerator free, ``"sequential"`` fills one after the other. ``None`` only loads.
        max_memory: As for `get_max_memory`.
        no_split_module_classes: Names of classes that stay on one device.
        offload_folder: For weights on disk that have no safetensors file, or that ``dtype`` converts.
        offload_buffers: Offload buffers too.
        dtype: The dtype of floating-point weights.
        offload_state_dict: Has no effect: the peak of memory that it lowers does not arise here.
        skip_keys: Keyword arguments (such as caches) that are never moved.
        preload_module_classes: Names of classes whose submodules are loaded together with them.
        force_hooks: Add hooks even if everything is on one device.
        strict: As for `load_checkpoint_in_model`, and so are the next three.
        full_state_dict: See there.
        broadcast_from_rank0: See there.
        mmap: See there.
        prefetch: Load the next module's offloaded weights while one computes.

    Raises:
        UnknownNameError: If ``device_map`` is an unknown mode.
        CheckpointError: If the checkpoint does not fit.
    """
    placed = _device_map(
        model, device_map, max_memory, no_split_module_classes, dtype=dtype, offload_buffers=offload_buffers
    )
    if placed is None or broadcast_from_rank0 or holds_dtensors(model):
        load_checkpoint_in_model(
            model, checkpoint, dtype=dtype, strict=strict, full_state_dict=full_state_dict,
            broadcast_from_rank0=broadcast_from_rank0, mmap=mmap,
        )  # fmt: skip
        index: dict[str, Any] = {}
    else:
        destination = Destination(
            placed, None if dtype is None else as_torch_dtype(dtype),
            folder=None if offload_folder is None else Path(offload_folder),
            offload_buffers=offload_buffers, may_map=mmap,
        )  # fmt: skip
        index = load_weights(model, checkpoint, destination, strict=strict)
    if placed is None:
        return model
    return dispatch_model(
        model, placed, offload_dir=offload_folder, offload_index=index or None, offload_buffers=offload_buffers,
        skip_keys=skip_keys, preload_module_classes=preload_module_classes, force_hooks=force_hooks, prefetch=prefetch,
    )  # fmt: skip


def _device_map(
    model: nn.Module,
    given: str | DeviceMap | None,
    max_memory: MaxMemory | None,
    not_split: Sequence[str] | None,
    *,
    dtype: str | torch.dtype | None,
    offload_buffers: bool,
) -> DeviceMap | None:
    if not isinstance(given, str):
        return given
    if given not in MODES:
        raise UnknownNameError.of("`device_map`", given, MODES)
    if given != "sequential":
        max_memory = get_balanced_memory(
            model, max_memory, not_split, dtype=dtype, low_zero=given == "balanced_low_0"
        )
    return infer_auto_device_map(model, max_memory, not_split, dtype=dtype, offload_buffers=offload_buffers)
