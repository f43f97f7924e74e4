"""Parameters that every rank keeps whole beside the shards: scalars, and those that are not to be sharded."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh

from accel_ops.nested.description import iterate_tensors


class WholeParameters:
    """Averages the gradients of replicated parameters over the ranks, packed, at the end of each backward pass.

    Every rank reduces all of them, with zeros for those that it did not use. A gradient that has been averaged before
    may have been added to: the average of the sum is the sum of the averages, since the earlier part is the same on
    all ranks.

    Args:
        root: The module whose forward pass, on all ranks, comes before a backward pass.
        parameters: Those of one model; the ones that are not trained are left alone.
        mesh: The ranks, along all its axes.
    """

    def __init__(self, root: nn.Module, parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
        self.is_syncing = True
        self._is_due = False
        self._parameters = list(parameters)
        self._mesh = mesh
        if self._parameters:
            root.register_forward_hook(self._watch)
        for parameter in self._parameters:
            if parameter.requires_grad:
                # A loss may reach it without an output of the root.
                parameter.register_post_accumulate_grad_hook(self._average_later)  # type: ignore[no-untyped-call]

    def _watch(self, root: nn.Module, args: Any, outputs: Any) -> None:
        self._is_due = False  # Still set if the last backward pass raised.
        for tensor in iterate_tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._average_later)

    def _average_later(self, tensor: torch.Tensor) -> None:
        if not self._is_due:
            self._is_due = True
            Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        is_due, self._is_due = self._is_due, False
        if not (is_due and self.is_syncing):
            return
        of_kind: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
        for parameter in self._parameters:
            if parameter.requires_grad:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                of_kind.setdefault((parameter.device, parameter.dtype), []).append(parameter.grad)
        for gradients in of_kind.values():
            packed = _flatten_dense_tensors(gradients)
            for axis in range(self._mesh.ndim):
                dist.all_reduce(packed, group=self._mesh.get_group(axis))
            packed.div_(self._mesh.size())
            torch._foreach_copy_(gradients, list(_unflatten_dense_tensors(packed, gradients)))
