"""Merge the shards that the ranks of a run wrote into weight files, tensor by tensor."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from accel_checkpoint.file_names import METADATA_NAME
from accel_checkpoint.manifest import saved_files
from accel_checkpoint.progress import QUIET_S, progress_bar
from accel_checkpoint.saving.model_weights import save_weights
from accel_checkpoint.tensors import DeferredTensor, deferred_in
from accel_state.errors import CheckpointError, ConfigError

if TYPE_CHECKING:  # they import torch's distributed checkpoints, which take a second
    from accel_checkpoint.formats.distributed import DistributedState


def merge_fsdp_weights(
    checkpoint_dir: str | os.PathLike[str],
    output_path: str | os.PathLike[str],
    safe_serialization: bool = True,
    remove_checkpoint_dir: bool = False,
    *,
    max_shard_size: int | str | None = None,
) -> None:
    """Merge the parts of a model that a sharded run has saved into weight files that plain PyTorch reads.

    Memory is needed for the two largest tensors only; with ``safe_serialization=False``, for the
    tensors of one file. Weights that `save_state` saved as tied are written once. Call it in one process, or on
    every rank: the main process does the work, and the other ranks wait. If it takes more than a few seconds and the
    package `tqdm` is installed, a bar shows the progress.

    Args:
        checkpoint_dir: A folder such as `pytorch_model_fsdp_0` in a checkpoint.
        output_path: The folder for the weights, made if missing.
        safe_serialization: Write `model.safetensors`; else `pytorch_model.bin`.
        remove_checkpoint_dir: Remove ``checkpoint_dir`` when the weights are complete on disk.
        max_shard_size: Largest size of one file, in bytes or such as `"5GB"`; None writes one file.

    Raises:
        CheckpointError: If there are no readable parts of a model.
    """
    from accel_state.partial_state import PartialState

    processes = PartialState()
    try:
        if processes.is_main_process:
            merge_parts(
                Path(checkpoint_dir),
                Path(output_path),
                is_safe=safe_serialization,
                max_shard_size=max_shard_size,
            )
            if remove_checkpoint_dir:
                shutil.rmtree(checkpoint_dir)
    finally:
        processes.wait_for_everyone()


def merge_parts(
    folder: Path, output: Path, *, is_safe: bool, max_shard_size: int | str | None, quiet_s: float = QUIET_S
) -> None:
    """Merge in this process, with a progress bar if it takes longer than ``quiet_s``.

    Raises:
        CheckpointError: If there are no readable parts of a model.
        ConfigError: If ``output`` is inside of ``folder``.
    """
    from accel_checkpoint.formats.distributed import DistributedState

    _check(folder, output)
    folder = folder.resolve()
    saved = DistributedState(
        saved_files(folder.parent), folder.name
    )  # the manifest, if any, is in the parent
    tops = sorted({str(entry.path[0]) for entry in saved.entries.values()})
    if tops == ["optimizer"]:
        raise CheckpointError(
            f"`{folder}` contains optimizer state, which is not merged: `load_state` reads it in any number of "
            "processes. Name the folder of the model instead."
        )
    state: dict[str, Any] = merged_state(saved, *(tops if tops == ["model"] else []))
    total = sum(tensor.nbytes for tensor in deferred_in(state))
    with progress_bar(f"Merging {folder.name}", total=total, quiet_s=quiet_s) as advance:
        save_weights(state, output, max_shard_size, is_safe, advance=advance)


def _check(folder: Path, output: Path) -> None:
    if not folder.is_dir():
        raise CheckpointError(f"`{folder}` is not a folder, so there is nothing to merge. Check its path.")
    if not (folder / METADATA_NAME).is_file():
        inside = sorted(path.parent.name for path in folder.glob(f"*/{METADATA_NAME}"))
        advice = (
            f" Name one of the folders in it: {', '.join(f'`{name}`' for name in inside)}." if inside else ""
        )
        raise CheckpointError(f"`{folder}` has no `{METADATA_NAME}`, so it has no sharded weights.{advice}")
    if output.resolve() == folder.resolve() or folder.resolve() in output.resolve().parents:
        raise ConfigError(
            f"`output_path` is `{output}`, inside of `{folder}`, which is merged. Choose another folder."
        )


def merged_state(saved: DistributedState, *path: str) -> dict[str, object]:
    """Return the state below ``path``, with deferred tensors.

    Tied weights, which share an entry's location in the table, are one tensor; other writers store each separately.
    """
    state: dict[str, object] = {}
    by_chunks: dict[object, DeferredTensor] = {}
    for rest, entry in saved.below(*path):
        name = ".".join(map(str, rest))
        if entry.dtype is None:
            state[name] = saved.value(entry)
            continue
        tensor = DeferredTensor(entry.dtype, torch.Size(entry.shape), partial(saved.value, entry))
        state[name] = by_chunks.setdefault(entry.chunks, tensor) if entry.chunks else tensor
    return state
