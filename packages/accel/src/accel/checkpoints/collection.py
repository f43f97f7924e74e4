"""Collect the files that this rank writes to a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from accel.checkpoints.prepared import Prepared, has_state_per_rank, is_being_read
from accel_backends.stepping.open_gradients import open_gradients
from accel_checkpoint.file_names import (
    LOADER_NAME,
    OPTIMIZER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    custom_file,
    gradients_file,
    loader_of_rank_file,
    numbered_file,
    random_states_file,
)
from accel_checkpoint.pieces import pieces_of
from accel_checkpoint.random_states import to_file
from accel_checkpoint.saving.pending_files import PendingFile, SafetensorsFile, TorchFile
from accel_data.loader_files import to_file as to_loader_file
from accel_ops.random.state import capture_rng_states

SaveHook = Callable[[list[nn.Module], list[Mapping[str, Any]], str], None]


@dataclass(frozen=True)
class SaveOptions:
    """How a checkpoint is written.

    Attributes:
        safe_serialization: Save weights as safetensors instead of with `torch.save`.
        max_shard_size: Maximum size of one weight file; None writes one file per model.
        hooks: Called with the models, the weights and the folder before anything is written. A hook that removes
            weights from the list must save them itself.
    """

    safe_serialization: bool = True
    max_shard_size: int | str | None = None
    hooks: Sequence[SaveHook] = ()


def collect(
    prepared: Prepared, folder: Path, *, rank: int, is_writer: bool, options: SaveOptions
) -> list[PendingFile]:
    """Return this rank's files. Every rank must call it, since it may use collectives.

    Args:
        prepared: The objects to save.
        folder: The temporary folder, for hooks that write files themselves.
        rank: This process.
        is_writer: Whether this rank writes the state that all ranks share.
        options: How to write the checkpoint.
    """
    weights = [prepared.strategy.model_state(model) for model in prepared.models]
    try:
        for hook in options.hooks:
            hook(list(prepared.models), weights, str(folder))  # type: ignore[arg-type]
    finally:
        # Even after a hook has failed on this rank: the other ranks may wait in these collectives.
        optimizers = [
            prepared.strategy.optimizer_state(optimizer, prepared.model_of(optimizer))
            for optimizer in prepared.optimizers
        ]
    files: list[PendingFile] = []
    for index, state in enumerate(weights):
        files += prepared.format.model_files(
            pieces_of(state, is_writer=is_writer),
            index=index,
            is_writer=is_writer,
            safe=options.safe_serialization,
            max_shard_size=options.max_shard_size,
        )
    if is_writer:
        files += [TorchFile(numbered_file(OPTIMIZER_NAME, i), state) for i, state in enumerate(optimizers)]
        files += _shared_files(prepared)
    files += _loader_files(prepared, rank=rank, is_writer=is_writer)
    if prepared.stepper.is_accumulating:
        files.append(SafetensorsFile(gradients_file(rank), open_gradients(prepared.bare_models()), {}))
    states = to_file(
        capture_rng_states(), accumulation=prepared.stepper.state_dict(), device_index=prepared.device_index
    )
    return [*files, TorchFile(random_states_file(rank), states)]


def _loader_files(prepared: Prepared, *, rank: int, is_writer: bool) -> list[PendingFile]:
    """Return the loaders' files: one per loader, plus one per further rank if the ranks' states differ."""
    files: list[PendingFile] = []
    for index, loader in prepared.loaders_with_state():
        names = [numbered_file(LOADER_NAME, index)] if is_writer else []
        if rank > 0 and has_state_per_rank(loader):
            names.append(loader_of_rank_file(index, rank))
        if names:
            content = to_loader_file(loader, is_under_way=is_being_read(loader, prepared.active_loaders))
            files += [TorchFile(name, content) for name in names]
    return files


def _shared_files(prepared: Prepared) -> list[PendingFile]:
    files: list[PendingFile] = [
        TorchFile(numbered_file(SCHEDULER_NAME, i), one.state_dict())
        for i, one in enumerate(prepared.schedulers)
    ]
    if prepared.precision.scaler is not None:
        files.append(TorchFile(SCALER_NAME, prepared.precision.state_dict()))
    files += [TorchFile(custom_file(index), one.state_dict()) for index, one in enumerate(prepared.custom)]
    return files
