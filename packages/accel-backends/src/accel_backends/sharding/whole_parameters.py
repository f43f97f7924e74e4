"""Parameters that every rank keeps whole beside the shards: scalars, and those that are not to be sharded."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh


class WholeParameters:
    """Averages the gradients of whole parameters over the ranks, as each is complete in backward.

    A gradient that has been averaged before may have been added to: the average of the sum is the sum of the
    averages, since the earlier part is the same on all ranks.

    Args:
        parameters: Those of one model; the ones that are not trained are left alone.
        mesh: The ranks, along all its axes.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
        self.is_syncing = True
        self._mesh = mesh
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._average)  # type: ignore[no-untyped-call]

    def _average(self, parameter: torch.Tensor) -> None:
        gradient = parameter.grad
        if not self.is_syncing or gradient is None:
            return
        for axis in range(self._mesh.ndim):
            dist.all_reduce(gradient, group=self._mesh.get_group(axis))
        gradient.div_(self._mesh.size())
