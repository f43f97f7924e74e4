"""Parameters of a sharded model that stay replicated: scalars and ignored ones; when all gradients are reduced."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from accel_ops.nested.describe import iterate_tensors


class ReplicatedParameters:
    """Averages the gradients of replicated parameters over the ranks, packed, at the end of each backward pass.

    Those that a rank did not use count as zero. A gradient that has been averaged before may have been added to: the
    average of the sum is the sum of the averages, since the earlier part is the same on all ranks.

    Args:
        root: The module that all ranks call before a backward pass; None if all use the same parameters.
        parameters: Those of one model; the ones that are not trained are left alone.
        mesh: The ranks, along all its axes.
    """

    def __init__(self, root: nn.Module | None, parameters: Iterable[nn.Parameter], mesh: DeviceMesh) -> None:
        self._is_syncing = True
        self._is_due = False
        self._mesh = mesh
        self._parameters = list(parameters)
        if self._parameters and root is not None:
            root.register_forward_hook(self._watch)
        for parameter in self._parameters:
            if parameter.requires_grad:  # A loss may reach it without an output of the root.
                parameter.register_post_accumulate_grad_hook(self._average_later)  # type: ignore[no-untyped-call]

    @contextmanager
    def unsynchronized(self) -> Iterator[None]:
        """Average no gradients until the block is left."""
        self._is_syncing = False
        try:
            yield
        finally:
            self._is_syncing = True

    def _watch(self, root: nn.Module, args: Any, outputs: Any) -> None:
        self._is_due = False  # It is still set if the last backward pass failed.
        for tensor in iterate_tensors(outputs):
            if tensor.requires_grad:
                tensor.register_hook(self._average_later)  # type: ignore[no-untyped-call]

    def _average_later(self, tensor: torch.Tensor) -> None:
        if not self._is_due:
            self._is_due = True
            Variable._execution_engine.queue_callback(self._average)

    @torch.no_grad()
    def _average(self) -> None:
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        is_due, self._is_due = self._is_due and self._is_syncing and bool(trained), False
        if not is_due:
            return
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in trained if parameter.grad is not None]
        packed = _flatten_dense_tensors(gradients)  # type: ignore[no-untyped-call]
        for axis in range(self._mesh.ndim):
            dist.all_reduce(packed, group=self._mesh.get_group(axis))
        packed.div_(self._mesh.size())
        averages = _unflatten_dense_tensors(packed, gradients)  # type: ignore[no-untyped-call]
        torch._foreach_copy_(gradients, averages)


@contextmanager
def separate_groups(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Split each group that has `DTensor`s and plain tensors, which ``foreach`` and ``fused`` steps refuse in one list.

    Only for one step: schedulers, scripts and saved states count on the groups as they are.
    """
    groups, kept = optimizer.param_groups, [group["params"] for group in optimizer.param_groups]
    for group, params in zip(tuple(groups), kept, strict=True):
        plain = [parameter for parameter in params if not isinstance(parameter, DTensor)]
        if 0 < len(plain) < len(params):
            group["params"] = [parameter for parameter in params if isinstance(parameter, DTensor)]
            groups.append({**group, "params": plain})
    try:
        yield
    finally:
        del groups[len(kept) :]
        for group, params in zip(groups, kept, strict=True):
            group["params"] = params


@contextmanager
def unsynchronized(model: FSDPModule, replicated: ReplicatedParameters | None) -> Iterator[None]:
    """Defer gradient reduction until the block is left; unsharded gradients accumulate locally."""
    model.set_requires_gradient_sync(False)
    try:
        with nullcontext() if replicated is None else replicated.unsynchronized():
            yield
    finally:
        model.set_requires_gradient_sync(True)


@contextmanager
def synchronized_in_shards(model: FSDPModule) -> Iterator[None]:
    """Reduce gradients over the shards in backward, and over the replicas of the model only after the block."""
    model.set_requires_all_reduce(False)
    try:
        yield
    finally:
        model.set_requires_all_reduce(True)
