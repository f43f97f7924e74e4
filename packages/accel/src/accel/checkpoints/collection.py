"""Collect the files that this rank writes to a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from accel.checkpoints.prepared import Prepared, has_state_per_rank, is_being_read
from accel_backends.checkpoint_formats.protocol import Files, SaveChoices
from accel_backends.stepping.open_gradients import open_gradients
from accel_checkpoint.file_names import (
    LOADER_NAME,
    SCALER_NAME,
    SCHEDULER_NAME,
    custom_file,
    gradients_file,
    loader_of_rank_file,
    numbered_file,
    random_states_file,
)
from accel_checkpoint.random_states import to_file
from accel_checkpoint.saving.collective_files import CollectiveFile
from accel_checkpoint.saving.pending_files import MergedFile, PendingFile, SafetensorsFile, TorchFile
from accel_data import PreparedLoader
from accel_data.loader_files import to_file as to_loader_file
from accel_ops.random import capture_rng_states
from accel_state.errors import CheckpointError

SaveHook = Callable[[list[nn.Module], list[Mapping[str, Any]], str], None]


@dataclass(frozen=True)
class SaveOptions:
    """How a checkpoint is written.

    Attributes:
        safe_serialization: Save weights as safetensors instead of with `torch.save`.
        max_shard_size: Maximum size of one weight file; None writes one file per model.
        hooks: Called with the models, the weights and the folder before anything is written. A hook that removes
            weights from the list must save them itself.
        engine_options: What only the format of the checkpoint knows; see `CheckpointFormat.save_arguments`.
        value_of_rank_0: Returns rank 0's value for that of this rank.
    """

    safe_serialization: bool = True
    max_shard_size: int | str | None = None
    hooks: Sequence[SaveHook] = ()
    engine_options: Mapping[str, Any] = field(default_factory=dict)
    value_of_rank_0: Callable[[str], str] = str

    def choices(self, *, rank: int, is_writer: bool) -> SaveChoices:
        """Return what a format needs to know of them, and of this rank."""
        return SaveChoices(
            rank=rank,
            is_writer=is_writer,
            safe=self.safe_serialization,
            max_shard_size=self.max_shard_size,
            engine_options=self.engine_options,
        )


def collect(prepared: Prepared, folder: Path, *, rank: int, is_writer: bool, options: SaveOptions) -> Files:
    """Return this rank's files. Every rank must call it, since it may use collectives.

    Args:
        prepared: The objects to save.
        folder: The temporary folder, for hooks that write files themselves.
        rank: This process.
        is_writer: Whether this rank writes the state that all ranks share.
        options: How to write the checkpoint.
    """
    if prepared.stepper.is_accumulating and not prepared.strategy.has_gradients_in_parameters:
        raise CheckpointError(
            "`save_state` was called within an accumulation, whose gradients are not reduced over all ranks yet and "
            "would be lost. Save when `accelerator.sync_gradients` is True, after the optimizer's step."
        )
    choices = options.choices(rank=rank, is_writer=is_writer)
    weights = [prepared.model_state(model) for model in prepared.models]
    before = list(weights)
    merged: list[MergedFile] = []
    collective: list[CollectiveFile] = []
    files: list[PendingFile] = []
    try:
        for hook in options.hooks:
            hook(prepared.bare_models(), weights, str(folder))
    finally:
        # Even after a hook has failed on this rank: the other ranks may wait in the collectives of the format.
        # A hook may remove weights on rank 0 only, but all ranks take part in writing those that are left.
        kept = json.dumps([n for n, one in enumerate(before) if any(one is other for other in weights)])
        kept_on_0 = options.value_of_rank_0(kept)
        weights = weights if kept_on_0 == kept else [before[number] for number in json.loads(kept_on_0)]
        for part in _states(prepared, weights, choices):
            files += part.own
            collective += part.collective
            merged += part.merged
    if is_writer:
        files += _shared_files(prepared)
    files += _loader_files(prepared, rank=rank, is_writer=is_writer)
    if prepared.stepper.is_accumulating:
        files.append(SafetensorsFile(gradients_file(rank), open_gradients(prepared.bare_models()), {}))
    states = to_file(
        capture_rng_states(), accumulation=prepared.stepper.state_dict(), device_index=prepared.device_index
    )
    return Files([*files, TorchFile(random_states_file(rank), states)], collective, merged)


def _states(
    prepared: Prepared, weights: Sequence[Mapping[str, Any]], choices: SaveChoices
) -> Iterator[Files]:
    """Yield the files of the models and optimizers."""
    form = prepared.format  # one for the whole save: it may remember what it has seen
    for index, state in enumerate(weights):
        yield form.model_files(state, index=index, choices=choices)
    for index, optimizer in enumerate(prepared.optimizers):
        inner = prepared.strategy.bare_optimizer(optimizer)
        yield form.optimizer_files(
            prepared.optimizer_state(optimizer),
            partial(prepared.strategy.optimizer_parameters, inner, prepared.models),
            index=index,
            choices=choices,
        )


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


def loaders_left_early(prepared: Prepared) -> list[int]:
    """Return the indexes of the loaders in the middle of an epoch that no loop is reading any more."""
    return [
        index
        for index, loader in prepared.loaders.items()
        if isinstance(loader, PreparedLoader)
        and loader.is_mid_epoch
        and not is_being_read(loader, prepared.active_loaders)
    ]


def _shared_files(prepared: Prepared) -> list[PendingFile]:
    files: list[PendingFile] = [
        TorchFile(numbered_file(SCHEDULER_NAME, i), one.state_dict())
        for i, one in enumerate(prepared.schedulers)
    ]
    if prepared.precision.scaler is not None:
        files.append(TorchFile(SCALER_NAME, prepared.precision.state_dict()))
    files += [TorchFile(custom_file(index), one.state_dict()) for index, one in enumerate(prepared.custom)]
    return files
