"""Where the values of a model come from before it is sharded: every rank gets rank 0's, one group at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from accel_ops.named_tensors import NamedTensor
from accel_state.errors import ConfigError


def check_same_model(
    tensors: Sequence[NamedTensor], *, device: torch.device, needs_values: bool = True
) -> None:
    """Refuse a model that the ranks built differently, or of which rank 0 has no values. Every rank must call it.

    Args:
        tensors: All parameters and buffers of the model.
        device: Where collectives run.
        needs_values: Whether rank 0 must have values.

    Raises:
        ConfigError: On every rank, naming those that differ from rank 0, or the tensor.
    """
    structure = repr([(found.names, tuple(found.tensor.shape), found.tensor.dtype) for found in tensors])
    digest = int.from_bytes(hashlib.sha256(structure.encode()).digest()[:7])
    first_missing = next((index for index, found in enumerate(tensors) if found.tensor.is_meta), -1)
    own = torch.tensor([digest, first_missing], device=device)
    of_rank = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_rank, own)
    digests = [int(found[0]) for found in of_rank]
    others = [str(rank) for rank, one in enumerate(digests) if one != digests[0]]
    if others:
        raise ConfigError(
            f"The model on rank {', '.join(others)} is not the model on rank 0: names, shapes or types of its "
            "parameters and buffers differ. Build the same model on every rank."
        )
    missing = int(of_rank[0][1])
    if needs_values and missing >= 0:
        raise ConfigError(
            f"`{tensors[missing].names[0]}` has no values on rank 0: it is on the meta device. Build the model with "
            "its weights on rank 0; the other ranks need none."
        )


@torch.no_grad()
def take_values_of_rank_0(tensors: Sequence[NamedTensor], *, device: torch.device) -> None:
    """Give every rank the values of rank 0, which the other ranks may hold on the meta device.

    Every rank must call it with the same tensors in the same order. They end up on ``device``, as the same
    objects where they were real, so that optimizers keep theirs.
    """
    pending = []
    for found in tensors:
        if found.tensor.is_meta:
            _replace(found, torch.empty_like(found.tensor, device=device))
        elif found.tensor.device != device:
            found.tensor.data = found.tensor.data.to(device)
        values = found.tensor.data
        if not values.is_contiguous():
            values = found.tensor.data = values.contiguous()
        if values.numel():
            pending.append(dist.broadcast(values, src=0, async_op=True))
    for work in pending:
        work.wait()


def _replace(found: NamedTensor, values: torch.Tensor) -> None:
    """Put real memory in place of a parameter or buffer on the meta device, at all places that hold it."""
    if isinstance(found.tensor, nn.Parameter):
        values = nn.Parameter(values, requires_grad=found.tensor.requires_grad)
    for module, key in found.places:
        if found.is_parameter:
            module._parameters[key] = values  # type: ignore[assignment]
        else:
            module._buffers[key] = values
    found.tensor = values
