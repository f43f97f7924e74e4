"""Where the values of a model come from before it is sharded: every rank gets rank 0's, one group at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from accel_ops.named_tensors import NamedTensor
from accel_state.errors import ConfigError


@torch.no_grad()
def take_values_of_rank_0(
    tensors: Sequence[NamedTensor], *, device: torch.device, group: dist.ProcessGroup | None = None
) -> None:
    """Give every rank the values of rank 0, which the other ranks may hold on the meta device.

    Every rank must call it with the same tensors in the same order. They end up on ``device``, as the same
    objects where they were real, so that optimizers keep theirs.

    Raises:
        ConfigError: If rank 0 has no values either.
    """
    is_source = dist.get_rank(group) == 0
    missing = [found.names[0] for found in tensors if found.tensor.is_meta]
    if is_source and missing:
        raise ConfigError(
            f"`{missing[0]}` has no values on rank 0: it is on the meta device there. Build the model with its "
            "weights on rank 0, or name their files with `load_weights_from` in `FullyShardedDataParallelPlugin`."
        )
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
            pending.append(dist.broadcast(values, group=group, group_src=0, async_op=True))
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
