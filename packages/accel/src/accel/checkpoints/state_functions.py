"""`save_accelerator_state` and `load_accelerator_state`, for callers that pass the objects.

They write directly to the folder, one file after another, without a manifest. Only `Accelerator.save_state` is atomic.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel_checkpoint.file_names import OPTIMIZERS, RANDOM_STATES, SCALER_NAME, SCHEDULERS
from accel_checkpoint.formats.torch_files import read_torch_file
from accel_checkpoint.formats.weight_files import read_model
from accel_checkpoint.functions import check_map_location
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.random_states import from_file, to_file
from accel_checkpoint.saving.model_weights import pending_weights
from accel_checkpoint.saving.pending_files import PendingFile, TorchFile, write_file
from accel_ops.random import capture_rng_states, restore_rng_states
from accel_state import PartialState


def save_accelerator_state(
    output_dir: str | os.PathLike[str],
    model_states: Sequence[Mapping[str, Any]],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    dataloaders: Sequence[Any],
    process_index: int,
    step: int,
    scaler: torch.amp.GradScaler | None = None,
    save_on_each_node: bool = False,
    safe_serialization: bool = True,
) -> Path:
    """Write the states of these objects and the random states to a folder, and return the folder.

    Args:
        output_dir: The folder.
        model_states: State dicts of the models.
        optimizers: The optimizers to save.
        schedulers: The schedulers to save.
        dataloaders: Ignored; `Accelerator.save_state` saves loaders.
        process_index: This process.
        step: Micro-batches since the last optimizer step.
        scaler: The gradient scaler.
        save_on_each_node: Write the state that all ranks share on the main process of each node.
        safe_serialization: Save weights as safetensors instead of with `torch.save`.
    """
    folder, state = Path(output_dir), PartialState()
    folder.mkdir(parents=True, exist_ok=True)
    files: list[PendingFile] = []
    if state.is_local_main_process if save_on_each_node else state.is_main_process:
        for index, weights in enumerate(model_states):
            files += pending_weights(weights, index=index, safe=safe_serialization, max_shard_size=None)
        for kind, objects in ((OPTIMIZERS, optimizers), (SCHEDULERS, schedulers)):
            files += [TorchFile(kind.name(i), item.state_dict()) for i, item in enumerate(objects)]
        if scaler is not None:
            files.append(TorchFile(SCALER_NAME, scaler.state_dict()))
    states = to_file(capture_rng_states(), accumulation={"step": step}, device_index=state.device.index or 0)
    files.append(TorchFile(RANDOM_STATES.name(process_index), states))
    for file in files:
        write_file(file, folder, replace=True)
    return folder


def load_accelerator_state(
    input_dir: str | os.PathLike[str],
    models: Sequence[nn.Module],
    optimizers: Sequence[Any],
    schedulers: Sequence[Any],
    dataloaders: Sequence[Any],
    process_index: int,
    scaler: torch.amp.GradScaler | None = None,
    map_location: Any = None,
    load_kwargs: Mapping[str, Any] | None = None,
    **load_model_func_kwargs: Any,
) -> dict[str, Any]:
    """Load what `save_accelerator_state` wrote, and return `{"step": …}`.

    Args:
        input_dir: The folder.
        models: The models to load.
        optimizers: The optimizers to load.
        schedulers: The schedulers to load.
        dataloaders: Ignored.
        process_index: This process.
        scaler: The gradient scaler.
        map_location: A device; ignored: files are read to the CPU and copied to each object's device.
        load_kwargs: Ignored.
        **load_model_func_kwargs: Passed to each model's `load_state_dict`.

    Raises:
        CheckpointError: If a file is missing, damaged, or contains more than plain data.
        ConfigError: If ``map_location`` is no device.
    """
    check_map_location(None if map_location == "on_device" else map_location)
    files, device_index = saved_files(Path(input_dir)), PartialState().device.index or 0
    for index, model in enumerate(models):
        model.load_state_dict(read_model(files, index), **load_model_func_kwargs)
    for kind, objects in ((OPTIMIZERS, optimizers), (SCHEDULERS, schedulers)):
        for index, item in enumerate(objects):
            item.load_state_dict(read_torch_file(files.path(kind.name(index))))
    if scaler is not None:
        scaler.load_state_dict(read_torch_file(files.path(SCALER_NAME)))
    name = RANDOM_STATES.name(process_index)
    content = read_torch_file(files.path(name))
    states, accumulation = from_file(content, device_index=device_index, file_name=name)
    restore_rng_states(states)
    return {"step": accumulation["step"]}
