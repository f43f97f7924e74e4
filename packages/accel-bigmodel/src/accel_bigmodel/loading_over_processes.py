"""Loading into models whose tensors are spread over processes, or on behalf of all of them."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from accel_bigmodel.checkpoint_files import checkpoint_files, opener
from accel_bigmodel.matching import match
from accel_state.errors import StateError


def holds_dtensors(model: nn.Module) -> bool:
    """Whether parameters of ``model`` are spread over processes."""
    if not dist.is_available() or not dist.is_initialized():
        return False
    from torch.distributed.tensor import DTensor

    return any(isinstance(parameter, DTensor) for parameter in model.parameters())


def read_for_broadcast(checkpoint: str | os.PathLike[str], *, only_first: bool) -> dict[str, Any]:
    """Return the whole state dict of a checkpoint, or nothing on processes that will be sent it.

    Raises:
        StateError: If it is to be sent and there is no process group.
    """
    if only_first:
        if not dist.is_initialized():
            raise StateError("`broadcast_from_rank0` needs a process group. Create the `PartialState` first.")
        if dist.get_rank() != 0:
            return {}
    state: dict[str, Any] = {}
    for file in checkpoint_files(checkpoint):
        with opener(file.path)(file.path) as reader:
            state.update({name: reader.read(name) for name in [*reader.keys()]})
    return state


def load_over_processes(
    model: nn.Module,
    state: dict[str, Any],
    *,
    is_full: bool,
    broadcast: bool,
    strict: bool,
    dtype: torch.dtype | None,
) -> None:
    """Give every process its part of ``state``; all of them must call this."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    if state:
        shapes = {
            name: value.shape for name, value in model.state_dict().items() if isinstance(value, torch.Tensor)
        }
        found = {name: value.shape for name, value in state.items() if isinstance(value, torch.Tensor)}
        match(shapes, found).settle("the checkpoint", strict=strict)
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device="cpu")
    if dtype is not None:
        model.to(dtype)
    options = StateDictOptions(
        full_state_dict=is_full or broadcast, broadcast_from_rank0=broadcast, strict=False
    )
    set_model_state_dict(model, state, options=options)
