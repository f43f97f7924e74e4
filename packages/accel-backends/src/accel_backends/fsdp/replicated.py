"""When and how gradients are reduced: of replicated parameters (scalars and ignored ones), and of unused ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
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

    Those that a rank did not use count as zero; those that no rank used keep no gradient. A gradient that has been
    averaged before may have been added to: the average of the sum is the sum of the averages, since the earlier part
    is the same on all ranks.

    Args:
        root: The module that all ranks call before a backward pass; None if the owner calls `average`.
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
        for parameter in self._parameters if root is not None else ():
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

    def _average(self) -> None:
        is_due, self._is_due = self._is_due and self._is_syncing, False
        if is_due:
            self.average()

    @torch.no_grad()
    def average(self) -> None:
        """Average the gradients now. Every rank must call it."""
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        if not trained:
            return
        is_unused = [parameter.grad is None for parameter in trained]
        gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in trained]
        used = used_flags(len(trained), is_unused if any(is_unused) else (), device=gradients[0].device)
        used = used.to(gradients[0].dtype)  # as what it is packed with
        tensors = [*gradients, used]
        packed = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
        for axis in range(self._mesh.ndim):
            dist.all_reduce(packed, group=self._mesh.get_group(axis))
        packed.div_(self._mesh.size())
        averages = _unflatten_dense_tensors(packed, tensors)  # type: ignore[no-untyped-call]
        torch._foreach_copy_(tensors, averages)
        if any(is_unused):  # The host waits for the device: a gradient is there or not.
            for parameter, gradient, is_used in zip(trained, gradients, used.tolist(), strict=True):
                parameter.grad = gradient if is_used else None


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


class UnusedParameters:
    """Counts parameters of a sharded model that a rank did not use as zero, and takes back gradients of zeros only.

    Otherwise ranks that use different ones, such as experts, would add up gradients of different parameters without
    a word, and an optimizer would decay parameters that no rank used. The ranks agree on these at the end of a
    backward pass that reduces gradients, by one small all-reduce; a rank that has used all does not wait for it.

    Args:
        model: Sharded by `fully_shard`.
        reduces_all: Also reduce units that did not run. Ranks that gather units together run the same ones; replicas
            may not.
    """

    def __init__(self, model: nn.Module, *, reduces_all: bool) -> None:
        self._reduces_all = reduces_all
        self._groups: dict[DeviceMesh, list[Any]] = {}
        self._running: dict[DeviceMesh, tuple[torch.Tensor, Any]] = {}
        """The latest all-reduce of each mesh, and the memory that it may still use."""
        self._backward_pass = -1
        for module in model.modules():
            group: Any = (
                module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            )
            if group is None or group.mesh_info.mesh.size() == 1:
                continue
            groups = self._groups.setdefault(group.mesh_info.mesh, [])
            if group not in groups:
                groups.append(group)
                group.has_run, group.unused = False, None
                # torch 2.13 has no public hook before a group is reduced; its own `reduce_scatter_unused_params`
                # leaves gradients of zeros, and reduces units that did not run.
                group.post_backward = partial(self._reduce, group)

    def _reduce(self, group: Any, *args: Any) -> None:
        """Reduce the gradients of a group of `fully_shard` that has run, zeros for the parameters that have none."""
        is_gathered = not group.is_sharded or group._all_gather_result is not None
        group.has_run |= self._reduces_all or is_gathered or bool(group._post_forward_indices)
        if group.reduce_grads and group.has_run:
            missing = [parameter for parameter in group.fsdp_params if _has_no_gradient(parameter)]
            if group.unused is None:
                group.unused = [one for one in missing if one.sharded_param.grad is None]
            else:  # It was reduced before, for another call of the unit or over the shards alone.
                group.unused = [one for one in group.unused if one in missing]
            for parameter in missing:
                parameter._unsharded_param.grad = torch.zeros_like(parameter._unsharded_param)
            number = torch._C._current_graph_task_id()
            if group.all_reduce_grads and number != self._backward_pass:
                self._backward_pass = number
                queue = Variable._execution_engine.queue_callback
                # Queued by a callback, it runs after torch's, which reduces what is left.
                queue(partial(queue, self._settle))
        group.has_run &= not group.reduce_grads
        type(group).post_backward(group, *args)

    @torch.no_grad()
    def _settle(self) -> None:
        """Give parameters that no rank used no gradient."""
        for mesh, groups in self._groups.items():
            parameters = [parameter for group in groups for parameter in group.fsdp_params]
            unused = {parameter for group in groups for parameter in group.unused or ()}
            is_unused = [parameter in unused for parameter in parameters] if unused else []
            used = used_flags(len(parameters), is_unused, device=groups[0].device)
            work: Any = None
            for axis in range(mesh.ndim):
                if work is not None:
                    work.wait()
                work = dist.all_reduce(used, group=mesh.get_group(axis), async_op=True)
            self._running[mesh] = used, work  # a rank that has used all does not need the answer
            if unused:
                work.wait()
            # The host waits for the device on ranks that left some out: a gradient is there or not.
            for parameter, is_used in zip(parameters, used.tolist() if unused else (), strict=False):
                if not is_used:
                    parameter.sharded_param.grad = None
            for group in groups:
                group.unused = None


def used_flags(number: int, is_unused: Sequence[bool], *, device: torch.device) -> torch.Tensor:
    """Return 1 for each of ``number`` parameters, 0 for unused ones; an empty ``is_unused`` costs no transfer."""
    used = torch.ones(number, device=device)
    return used.masked_fill_(torch.tensor(is_unused, device=device), 0) if is_unused else used


def _has_no_gradient(parameter: Any) -> bool:
    unsharded: Any = getattr(parameter, "_unsharded_param", None)  # None until it is gathered the first time
    if unsharded is None or not unsharded.requires_grad:
        return False
    return unsharded.grad is None and parameter.unsharded_accumulated_grad is None
