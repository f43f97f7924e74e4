"""The values of a model before it is sharded: every rank receives those of rank 0, one group at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn

from accel_ops.named_tensors import NamedTensor
from accel_state.errors import ConfigError

_ALIGNMENT = 64


def check_same_model(tensors: Sequence[NamedTensor], *, device: torch.device) -> list[NamedTensor]:
    """Return the tensors that rank 0 holds on the meta device; refuse a model that the ranks built differently.

    Every rank must call it.

    Args:
        tensors: All parameters and buffers of the model.
        device: Where collectives run.

    Raises:
        ConfigError: On every rank, naming the ranks that differ from rank 0.
    """
    structure = repr([(found.names, tuple(found.tensor.shape), found.tensor.dtype) for found in tensors])
    digest = int.from_bytes(hashlib.sha256(structure.encode()).digest()[:7])
    own = torch.tensor([digest], device=device)
    of_rank = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(of_rank, own)
    digests = [int(found) for found in of_rank]
    others = [str(rank) for rank, one in enumerate(digests) if one != digests[0]]
    if others:
        raise ConfigError(
            f"The model on rank {', '.join(others)} is not the model on rank 0: names, shapes or types of its "
            "parameters and buffers differ. Build the same model on every rank."
        )
    is_missing = torch.tensor([found.tensor.is_meta for found in tensors], dtype=torch.uint8, device=device)
    if len(tensors):
        dist.broadcast(is_missing, src=0)
    return [found for found, missing in zip(tensors, is_missing.tolist(), strict=True) if missing]


def refuse_missing(missing: Sequence[NamedTensor]) -> None:
    """Check that no tensor is without values on every rank.

    Raises:
        ConfigError: If there is one; names the first.
    """
    if missing:
        raise ConfigError(
            f"`{missing[0].names[0]}` has no values on rank 0: it is on the meta device. Build the model with its "
            "weights on rank 0; the other ranks need none. With version 2, weights may also stay in safetensors "
            "files that all ranks can read: "
            "`FullyShardedDataParallelPlugin(fsdp_version=2, load_weights_from=folder)`."
        )


@torch.no_grad()
def take_values_of_rank_0(tensors: Sequence[NamedTensor], *, device: torch.device) -> None:
    """Broadcast the values of rank 0, which the other ranks may hold on the meta device.

    Every rank must call it with the same tensors in the same order. They end up on ``device``, as the same
    objects where they were real, so that optimizers keep theirs.
    """
    pending = []
    for found in tensors:
        if found.tensor.is_meta:
            replace_tensor(found, torch.empty_like(found.tensor, device=device))
        elif found.tensor.device != device:
            found.tensor.data = found.tensor.data.to(device)
        values = found.tensor.data
        if not values.is_contiguous():
            values = found.tensor.data = values.contiguous()
        if values.numel():
            if type(values) is torch.Tensor:
                # As bytes: gloo and NCCL lack 16-bit integers, gloo 8-bit floats.
                values = values.view(-1).view(torch.uint8)
            pending.append(dist.broadcast(values, src=0, async_op=True))
    for work in pending:
        work.wait()


def replace_tensor(found: NamedTensor, values: torch.Tensor) -> None:
    """Put real memory in place of a parameter or buffer on the meta device, at all places that hold it."""
    if found.is_parameter:
        values = nn.Parameter(values, requires_grad=found.tensor.requires_grad)
    for module, key in found.places:
        if found.is_parameter:
            module._parameters[key] = values  # type: ignore[assignment]
        else:
            module._buffers[key] = values
    found.tensor = values


class ReceiveBuffer:
    """One piece of memory for all groups of parameters that this rank holds on the meta device.

    Allocated anew for each group, what a group gives back would be broken up by the shards that stay, and on the CPU
    nearly a whole model would pile up.

    Args:
        groups: The parameters to receive, by group.
        device: Where to.
    """

    def __init__(self, groups: Iterable[Sequence[NamedTensor]], *, device: torch.device) -> None:
        sizes = [sum(_padded(found.tensor) for found in _on_meta(group)) for group in groups]
        self._memory = torch.empty(max(sizes, default=0), dtype=torch.uint8, device=device)

    def lend(self, group: Sequence[NamedTensor]) -> None:
        """Replace parameters on the meta device by ones in the buffer, whose content is undefined.

        Those of the group before must not be used any more.
        """
        begin = 0
        for found in _on_meta(group):
            tensor = found.tensor
            values = self._memory[begin : begin + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            replace_tensor(found, values)
            begin += _padded(tensor)


def _on_meta(group: Sequence[NamedTensor]) -> list[NamedTensor]:
    return [found for found in group if found.tensor.is_meta]


def _padded(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
