"""Load checkpoints, in one file or several, into state dicts and models."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_bigmodel.dtypes import as_torch_dtype
from accel_bigmodel.loading.distributed import load_distributed
from accel_bigmodel.loading.loader import LoadOptions, holds_dtensors, load_weights
from accel_bigmodel.planning.device_maps import DeviceMap, check_covered, device_of
from accel_checkpoint.formats.weight_files import read_weights
from accel_checkpoint.manifest import saved_files
from accel_ops.nested.move import send_to_device
from accel_state.errors import CheckpointError, ConfigError


def load_state_dict(
    checkpoint_file: str | os.PathLike[str], device_map: DeviceMap | None = None
) -> dict[str, Any]:
    """Return the state dict in one weight file, with tied weights under all of their names.

    No code in the file can run: it is read by safetensors, or by ``torch.load`` with ``weights_only``.

    Args:
        checkpoint_file: A ``.safetensors`` file, or one written by ``torch.save``.
        device_map: The device of each module's tensors. Without a map, and for ``"disk"``, they stay on the CPU.

    Raises:
        CheckpointError: If the file is missing, damaged, or contains more than tensors and plain values.
        ConfigError: If ``device_map`` does not cover all names.
    """
    path = Path(checkpoint_file)
    if not path.is_file():
        raise CheckpointError(f"There is no checkpoint file at `{path}`. Check the path.")
    content = read_weights(saved_files(path.parent).path(path.name))
    if device_map is None:
        return content
    check_covered(list(content), device_map)
    # Not `.to`: an extra state may contain tensors at any depth.
    return {name: send_to_device(value, _device(name, device_map)) for name, value in content.items()}


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
    """Load a checkpoint into ``model``, directly into the final tensors, without a full state dict in memory.

        load_checkpoint_in_model(model, "weights", dtype=torch.bfloat16)

    Names and shapes are compared before any tensor is changed. Parameters that are already on their device are filled
    in place, so that optimizers keep them; parameters on the meta device are replaced. Ties and ``requires_grad`` are
    kept. With ``broadcast_from_rank0``, or if the model has DTensors, every rank must call it.

    Args:
        model: A model, or a skeleton from `init_empty_weights`.
        checkpoint: A weight file, an index (``.json``), or a folder with one of them.
        device_map: The device of each module's tensors; must cover the model. Without it tensors stay on their device,
            and tensors on the meta device go to the CPU. Tensors for ``"disk"`` stay on the meta device until
            `dispatch_model` is called with the same folder.
        offload_folder: For ``"disk"``. Weights in safetensors files stay there, and the folder gets an index of them;
            others (``.bin``, another dtype) are written to it.
        dtype: The dtype of floating-point weights. Default: the model's dtypes.
        offload_state_dict: No effect: weights are loaded one at a time anyway.
        offload_buffers: Offload buffers of modules on disk too; otherwise they go to the CPU.
        keep_in_fp32_modules: Modules (by name, or part of a dotted name) whose weights are loaded in float32 instead
            of ``dtype``.
        offload_8bit_bnb: Not supported: `load_and_quantize_model` quantizes weights on disk.
        strict: Raise for missing or unexpected weights; otherwise a warning names them. Wrong shapes, and checkpoints
            without any name of the model, always raise.
        full_state_dict: For models of DTensors: the checkpoint contains full tensors, the same for all processes;
            otherwise each process passes the file of its shards that it wrote with ``torch.save``.
        broadcast_from_rank0: Only rank 0 reads the checkpoint, and broadcasts the weights.
        mmap: Map safetensors files instead of reading them, for tensors on the CPU in their stored dtype. Pages are
            read on use, and processes of one machine share the memory; tensors that are written to become private.

    Raises:
        CheckpointError: If the checkpoint is missing, damaged, or does not fit; the model is not changed then.
        ConfigError: If ``device_map`` does not fit the model, or there is no folder for weights on disk.
    """
    options = LoadOptions(
        device_map, None if dtype is None else as_torch_dtype(dtype), tuple(keep_in_fp32_modules or ()),
        folder=None if offload_folder is None else Path(offload_folder), offload_buffers=offload_buffers,
        may_map=mmap,
    )  # fmt: skip
    if offload_8bit_bnb:
        raise ConfigError(
            "`offload_8bit_bnb` has no effect here. Use `load_and_quantize_model` to quantize weights that go to disk."
        )
    if broadcast_from_rank0 or holds_dtensors(model):
        if device_map is not None:
            raise ConfigError(
                "`device_map` has no effect if weights are sharded over processes, or one process reads for all. "
                "Omit it; each process keeps its part on the device of the model."
            )
        load_distributed(
            model,
            checkpoint,
            options,
            is_full=full_state_dict,
            broadcast=broadcast_from_rank0,
            strict=strict,
        )
        return
    if device_map is not None and "disk" in device_map.values() and offload_folder is None:
        raise ConfigError(
            "`device_map` leaves weights on disk. Pass an `offload_folder` for them or their index."
        )
    load_weights(model, checkpoint, options, strict=strict)


def _device(name: str, device_map: DeviceMap) -> torch.device:
    device = device_of(name, device_map)
    return torch.device("cpu") if device in (None, "disk") else torch.device(device)
