"""Memory in which the whole parameters of one group after the other are received before they are cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from accel_backends.sharding.values import replace_tensor
from accel_ops.named_tensors import NamedTensor

_ALIGNMENT = 64


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
