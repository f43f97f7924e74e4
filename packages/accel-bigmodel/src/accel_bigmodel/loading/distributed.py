"""Load into models whose tensors are sharded, or read on one rank and broadcast."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_bigmodel.loading.loader import LoadOptions
from accel_bigmodel.loading.matching import match
from accel_checkpoint.formats.weight_files import checkpoint_files, read_weights
from accel_checkpoint.manifest import saved_files
from accel_ops.named_tensors import named_tensors, tied_names
from accel_state.errors import AccelError, CheckpointError, StateError


def load_distributed(
    model: nn.Module,
    checkpoint: str | os.PathLike[str],
    options: LoadOptions,
    *,
    is_full: bool,
    broadcast: bool,
    strict: bool,
) -> None:
    """Load each process's part of a checkpoint. Every rank must call it; it blocks until rank 0 has read the files.

    Args:
        model: Its tensors may be DTensors.
        checkpoint: As for `load_checkpoint_in_model`. Without ``broadcast`` each process may name another file.
        options: Only the dtypes are used.
        is_full: Whether the checkpoint contains full tensors, rather than the DTensors of this process.
        broadcast: Only rank 0 reads, full tensors, and broadcasts them.
        strict: As for `load_checkpoint_in_model`.

    Raises:
        StateError: If ``broadcast`` is set and there is no process group.
        CheckpointError: If the checkpoint does not fit the model; on every rank, if rank 0 cannot read it.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    if broadcast:
        state = _read_on_first_rank(model, checkpoint, strict=strict)
    else:
        state = _read(model, checkpoint, strict=strict)
    _allocate(model, options)
    torch_options = StateDictOptions(
        full_state_dict=is_full or broadcast, broadcast_from_rank0=broadcast, strict=False
    )
    set_model_state_dict(model, state, options=torch_options)


def _read(model: nn.Module, checkpoint: str | os.PathLike[str], *, strict: bool) -> dict[str, Any]:
    state: dict[str, Any] = {}
    files = checkpoint_files(checkpoint)
    with saved_files(files[0].path.parent) as saved:
        for file in files:
            state.update(read_weights(saved.path(file.path.name)))
    shapes = {n: value.shape for n, value in model.state_dict().items() if isinstance(value, torch.Tensor)}
    saved_shapes = {name: value.shape for name, value in state.items() if isinstance(value, torch.Tensor)}
    match(shapes, saved_shapes, ties=tied_names(model)).raise_or_warn(checkpoint, strict=strict)
    return state


def _read_on_first_rank(
    model: nn.Module, checkpoint: str | os.PathLike[str], *, strict: bool
) -> dict[str, Any]:
    """Return the state dict on rank 0 and an empty one on other ranks, or raise on all ranks.

    The failure is broadcast: raised on rank 0 only, it would leave the other ranks waiting until the timeout.
    """
    if not dist.is_initialized():
        raise StateError("`broadcast_from_rank0` needs a process group. Create the `PartialState` first.")
    state: dict[str, Any] = {}
    failure: AccelError | None = None
    if dist.get_rank() == 0:
        try:
            state = _read(model, checkpoint, strict=strict)
        except AccelError as error:
            failure = error
    message = [None if failure is None else str(failure)]
    dist.broadcast_object_list(message, src=0)
    if failure is not None:
        raise failure
    if message[0] is not None:
        raise CheckpointError(f"Rank 0 could not read the checkpoint: {message[0]}")
    return state


def _allocate(model: nn.Module, options: LoadOptions) -> None:
    """Allocate tensors that are on the meta device or have another dtype than requested."""
    for named in named_tensors(model):
        old, dtype = named.tensor, options.dtype_of(named.names[0], named.tensor)
        if named.is_persistent and (old.is_meta or old.dtype != dtype):
            with torch.no_grad():
                fresh = torch.empty_like(old, dtype=dtype, device=_device(old))
            made = nn.Parameter(fresh, old.requires_grad) if named.is_parameter else fresh
            for module, key in named.places:
                setattr(module, key, made)


def _device(tensor: torch.Tensor) -> torch.device | str:
    """Return the device of a tensor; for a DTensor on the meta device, the device of its mesh."""
    if not tensor.is_meta:
        return tensor.device
    mesh = getattr(tensor, "device_mesh", None)
    return "cpu" if mesh is None else str(mesh.device_type)
