"""What this rank writes into a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from accel.checkpoints.gradients import open_gradients
from accel.checkpoints.layout import (
    LOADER_NAME,
    custom_file,
    gradients_file,
    loader_of_rank_file,
    numbered_file,
    random_states_file,
)
from accel.checkpoints.loader_files import to_file as to_loader_file
from accel.checkpoints.pieces import Piece, SafetensorsPiece, TorchPiece, weight_pieces
from accel.checkpoints.prepared import Prepared, has_state_per_rank, is_being_read
from accel.checkpoints.random_states import to_file
from accel.file_names import OPTIMIZER_NAME, SCALER_NAME, SCHEDULER_NAME
from accel_ops.random.state import capture_rng_states

SaveHook = Callable[[list[nn.Module], list[Mapping[str, Any]], str], None]


@dataclass(frozen=True)
class SaveOptions:
    """How a checkpoint is written.

    Attributes:
        safe_serialization: Weights as safetensors, else by `torch.save`.
        max_shard_size: Largest size of one weight file; None: one file per model.
        hooks: Called with models, weights and folder before anything is written; what they take out of the
            weights is theirs to save.
    """

    safe_serialization: bool = True
    max_shard_size: int | str | None = None
    hooks: Sequence[SaveHook] = ()


def collect(
    prepared: Prepared, folder: Path, *, rank: int, is_writer: bool, options: SaveOptions
) -> list[Piece]:
    """Return this rank's files. Every rank must call it; it may communicate.

    Args:
        prepared: What has a state.
        folder: Where the files will be written, for hooks that write their own.
        rank: This process.
        is_writer: Whether this rank writes what all ranks share.
        options: How it is written.
    """
    weights = [prepared.strategy.model_state(model) for model in prepared.models]
    try:
        for hook in options.hooks:
            hook(list(prepared.models), weights, str(folder))  # type: ignore[arg-type]
    finally:
        # Also where a hook has failed, perhaps on this rank alone: the others wait for this one in it.
        optimizers = [
            prepared.strategy.optimizer_state(optimizer, prepared.model_of(index))
            for index, optimizer in enumerate(prepared.optimizers)
        ]
    pieces: list[Piece] = []
    if is_writer:
        for index, state in enumerate(weights):
            pieces += weight_pieces(
                state, index=index, safe=options.safe_serialization, max_shard_size=options.max_shard_size
            )
        pieces += [TorchPiece(numbered_file(OPTIMIZER_NAME, i), state) for i, state in enumerate(optimizers)]
        pieces += _shared_pieces(prepared)
    pieces += _loader_pieces(prepared, rank=rank, is_writer=is_writer)
    if prepared.stepper.is_accumulating:
        pieces.append(SafetensorsPiece(gradients_file(rank), open_gradients(prepared.bare_models()), {}))
    states = to_file(
        capture_rng_states(), accumulation=prepared.stepper.state_dict(), device_index=prepared.device_index
    )
    return [*pieces, TorchPiece(random_states_file(rank), states)]


def _loader_pieces(prepared: Prepared, *, rank: int, is_writer: bool) -> list[Piece]:
    """Return the files of loaders: one of each, and one for each further rank that has a state of its own."""
    pieces: list[Piece] = []
    for index, loader in prepared.loaders_with_state():
        names = [numbered_file(LOADER_NAME, index)] if is_writer else []
        if rank > 0 and has_state_per_rank(loader):
            names.append(loader_of_rank_file(index, rank))
        if names:
            content = to_loader_file(loader, is_under_way=is_being_read(loader, prepared.active_loaders))
            pieces += [TorchPiece(name, content) for name in names]
    return pieces


def _shared_pieces(prepared: Prepared) -> list[Piece]:
    pieces: list[Piece] = [
        TorchPiece(numbered_file(SCHEDULER_NAME, i), one.state_dict())
        for i, one in enumerate(prepared.schedulers)
    ]
    if prepared.precision.scaler is not None:
        pieces.append(TorchPiece(SCALER_NAME, prepared.precision.state_dict()))
    pieces += [TorchPiece(custom_file(index), one.state_dict()) for index, one in enumerate(prepared.custom)]
    return pieces
