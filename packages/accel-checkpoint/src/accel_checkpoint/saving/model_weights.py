"""Save the weights of a model in one file or in shards, atomically."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from accel_checkpoint.file_names import PICKLED, SAFETENSORS, WeightFormat, weight_format
from accel_checkpoint.files import force_to_disk, resolved
from accel_checkpoint.progress import Advance
from accel_checkpoint.saving.pending_files import (
    JsonFile,
    PendingFile,
    SafetensorsFile,
    TorchFile,
    second_names_of,
    write_file,
)
from accel_checkpoint.saving.staging import check_is_utf8, temporary_folder
from accel_checkpoint.tensors import DeferredTensor, deferred_in, fetching_all, second_names_in, sharable_in
from accel_ops.byte_sizes import convert_file_size_to_int
from accel_state.errors import CheckpointError, ConfigError
from accel_state.user_warnings import warn_user


def save_model(
    model: torch.nn.Module | Mapping[str, Any],
    save_directory: str | os.PathLike[str],
    max_shard_size: int | str = "10GB",
    safe_serialization: bool = True,
) -> list[Path]:
    """Save the weights of ``model`` in files that plain safetensors or ``torch.load`` can read.

    One file, ``model.safetensors`` (``pytorch_model.bin`` without ``safe_serialization``), or if that were
    larger than ``max_shard_size``, ``model-00001-of-0000N.safetensors`` … and an index. Tied weights are
    saved once, in safetensors under their first name.

    The files are complete on disk before the first of them gets its name; only then are the files of an
    earlier save in the same format removed. Call it on one process per folder.

    Args:
        model: A module, or a state dict (tensors on any device; moved to the CPU shard by shard).
        save_directory: Created if missing; other files in it are not changed.
        max_shard_size: Bytes, or a string such as ``"5GB"``. A larger tensor gets a separate file.
        safe_serialization: safetensors if true, else ``torch.save``.

    Returns:
        The files written, the index (if any) last.

    Raises:
        CheckpointError: If a tensor has no values (it is on the meta device) or cannot be stored in the format.
        ConfigError: If ``save_directory`` is a file or ``max_shard_size`` is not a size.
    """
    state = model.state_dict() if isinstance(model, torch.nn.Module) else model
    return save_weights(state, save_directory, max_shard_size, safe_serialization)


def save_weights(
    state: Mapping[str, Any],
    save_directory: str | os.PathLike[str],
    max_shard_size: int | str | None,
    safe_serialization: bool,
    *,
    is_writer: bool = True,
    advance: Advance | None = None,
) -> list[Path]:
    """Save a state dict as `save_model` does; without ``max_shard_size``, in one file.

    If it has deferred tensors, every rank must call it: ranks other than ``is_writer`` fetch the tensors, and return no
    files.
    """
    if not is_writer and not deferred_in(state):
        return []
    files = pending_weights(
        state, index=0, safe=safe_serialization, max_shard_size=max_shard_size, must_be_plain=False
    )
    with fetching_all([tensor for file in files for tensor in file.deferred]):
        if not is_writer:
            return []
        written = SAFETENSORS if safe_serialization else PICKLED
        names = [file.name for file in files]
        folder = _make_folder(save_directory)
        with temporary_folder(folder, "weights") as staged:
            for file in files:
                _write(file, staged, folder=folder, advance=advance)
            _publish(staged, names, index=written.index)
    _remove_earlier(folder, written, keep=names)
    _warn_if_shadowed(folder, written)
    return [folder / name for name in names]


def _write(file: PendingFile, staged: Path, *, folder: Path, advance: Advance | None) -> None:
    try:
        write_file(file, staged, advance=advance)
    except OSError as error:
        raise CheckpointError(
            f"`{folder / file.name}` could not be written: {error}. "
            "Free space on the disk or fix its permissions, and save again."
        ) from error


def _publish(staged: Path, names: Sequence[str], *, index: str) -> None:
    """Move the files ``names`` from ``staged`` into the folder around it, the index last.

    An older index stays until then, unless new files replace some that it names. Then it is removed first: a process
    killed in between must not leave an index of old and new files.
    """
    folder = staged.parent
    if index in names and any((folder / name).exists() for name in names if name != index):
        (folder / index).unlink(missing_ok=True)
        force_to_disk(folder)
    for name in names:
        if name != index:
            (staged / name).replace(folder / name)
    force_to_disk(folder)
    if index in names:
        (staged / index).replace(folder / index)
        force_to_disk(folder)


def _make_folder(save_directory: str | os.PathLike[str]) -> Path:
    folder = Path(save_directory)
    check_is_utf8(resolved(folder))
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"`save_directory` must be a folder, but `{folder}` is a file.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _remove_earlier(folder: Path, names: WeightFormat, *, keep: Sequence[str]) -> None:
    earlier = [path for path in folder.iterdir() if names.matches(path.name) and path.name not in keep]
    # The index first: without it, a remainder of shards can no longer be taken for a checkpoint.
    for path in sorted(earlier, key=lambda path: path.name != names.index):
        path.unlink(missing_ok=True)


def _warn_if_shadowed(folder: Path, written: WeightFormat) -> None:
    if written == PICKLED and any(SAFETENSORS.matches(path.name) for path in folder.iterdir()):
        warn_user(
            f"`{folder}` also has safetensors weights of an earlier save, which readers prefer to the new "
            f"`{PICKLED.whole}`. Remove them if they are out of date.",
            main_process_only=False,
        )


def pending_weights(
    state: Mapping[str, Any],
    *,
    index: int,
    safe: bool,
    max_shard_size: int | str | None,
    must_be_plain: bool = True,
    is_writer: bool = True,
) -> list[PendingFile]:
    """Return the weight files of one model: a single file, or shards and their index.

    Args:
        state: State dict of the model.
        index: Index of the model.
        safe: Use safetensors instead of `torch.save`; tied weights are then stored once, under their first name.
        max_shard_size: Maximum size of one file; None writes a single file.
        must_be_plain: Reject content that could not be loaded without running code.
        is_writer: Whether this rank writes the files.

    Raises:
        CheckpointError: If a tensor is on the meta device, or the format cannot store it.
    """
    empty = [name for name, value in state.items() if isinstance(value, torch.Tensor) and value.is_meta]
    if empty:
        listed = ", ".join(f"`{name}`" for name in empty[:5])
        more = f" and {len(empty) - 5} more" if len(empty) > 5 else ""
        raise CheckpointError(
            f"{listed}{more} of model {index} cannot be saved: on the meta device a tensor has no values. "
            "Load the weights first, for example with `load_checkpoint_in_model`."
        )
    names = weight_format(index, safe=safe)
    second_names = second_names_of(state) if safe else second_names_in(sharable_in(state))
    members_of = {name: [name] for name in state if name not in second_names}
    for name, kept in second_names.items() if not safe else ():
        members_of[kept].append(name)  # `torch.save` stores the tensor once, in the same file

    def file(name: str, members: Sequence[str]) -> PendingFile:
        content = {member: state[member] for member in members}
        if safe:
            return SafetensorsFile(name, content, second_names, is_writer=is_writer)
        return TorchFile(name, content, must_be_plain, is_trained=True, is_writer=is_writer)

    if max_shard_size is None:
        return [file(names.whole, list(state) if not safe else list(members_of))]
    groups = [(members, _num_bytes(state[first])) for first, members in members_of.items()]
    shards = plan_shards(groups, max_shard_size=max_shard_size)
    if len(shards) == 1:
        return [file(names.whole, shards[0])]
    files = {names.shard(number, num_shards=len(shards)): members for number, members in enumerate(shards, 1)}
    content = {
        "metadata": {"total_size": sum(size for _, size in groups)},
        "weight_map": {member: name for name, members in files.items() for member in members},
    }
    return [
        *(file(name, members) for name, members in files.items()),
        JsonFile(names.index, content, is_writer),
    ]


def plan_shards(
    groups: Iterable[tuple[Sequence[str], int]], *, max_shard_size: int | str | None
) -> list[list[str]]:
    """Return the names for each file, in the given order; a file is full when the next group does not fit.

    A group is names that share memory, with their size in bytes; one above the limit gets a separate file. There is
    at least one list, which is empty if there is nothing to save.

    Raises:
        ConfigError: If ``max_shard_size`` is not a size above 0.
    """
    limit = math.inf if max_shard_size is None else convert_file_size_to_int(max_shard_size)
    if limit == 0:
        raise ConfigError("`max_shard_size` must be larger than 0 bytes.")
    shards: list[list[str]] = [[]]
    filled = 0
    for names, size in groups:
        if filled + size > limit and shards[-1]:
            shards.append([])
            filled = 0
        shards[-1].extend(names)
        filled += size
    return shards


def _num_bytes(value: Any) -> int:
    """Return the size of a value; of a sparse tensor the dense size, which is an upper bound."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return value.nbytes if isinstance(value, DeferredTensor) else 0
