"""Shard a model: give it its values, group by group, and cut each group over the ranks."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from accel_backends.sharding.file_values import FileValues
from accel_backends.sharding.settings import ShardSettings
from accel_backends.sharding.units import ROOT, ShardGroup, tensors_of_groups
from accel_backends.sharding.values import (
    ReceiveBuffer,
    check_same_model,
    refuse_missing,
    take_values_of_rank_0,
)
from accel_ops.named_tensors import named_tensors
from accel_state.logging import get_logger

if TYPE_CHECKING:
    from accel_ops.named_tensors import NamedTensor

logger = get_logger(__name__)


def shard_model(
    model: nn.Module,
    groups: Sequence[ShardGroup],
    settings: ShardSettings,
    *,
    whole: Collection[str] = (),
    files: str | os.PathLike[str] | None = None,
    cut_layers: Sequence[Callable[[Sequence[NamedTensor]], None]] = (),
) -> None:
    """Shard ``model`` in place; its parameters become `DTensor`s under the same names.

    Every rank must call it. All ranks take the values of rank 0; other ranks may hold them on the meta device. Of
    what is on the meta device on rank 0, too, each rank reads its rows from files. At no time is more than one group
    held in whole beside what the caller keeps.

    Args:
        model: The model.
        groups: From `shard_groups`; the root is the last.
        settings: How to shard.
        whole: First names of the parameters that stay whole on every rank.
        files: Safetensors files of the model, as `FileValues` takes them.
        cut_layers: Each is called with the parameters of each group, when they have their values, to cut the layers
            that hold them over another axis before.

    Raises:
        ConfigError: If the ranks have different models, or rank 0 has no values and there are no files.
        CheckpointError: If the files do not fit the model or cannot be read.
    """
    tensors = named_tensors(model)
    missing = check_same_model(tensors, device=settings.device)
    in_files = {found.names[0] for found in missing}
    values = values_in_files(model, tensors, missing, files)
    modules = dict(model.named_modules(remove_duplicate=False))
    parts = [
        _GroupTensors.of(group_tensors, whole=whole, in_files=in_files)
        for group_tensors in tensors_of_groups(model, groups)
    ]
    buffer = ReceiveBuffer([part.received_shards for part in parts], device=settings.device)
    for group, part in zip(groups, parts, strict=True):
        buffer.lend(part.received_shards)
        take_values_of_rank_0(part.received, device=settings.device)
        if values is not None:
            for found in part.whole_in_files:
                values.fill(found, device=settings.device)
        members = [modules[name] for name in group.modules]
        ignored = {model.get_parameter(name) for name in whole}
        cut_group(members, group, part.owned, settings, ignored=ignored, cut_layers=cut_layers)
        if values is not None:
            for found in part.owned:
                if found.names[0] in in_files:
                    values.fill_shard(found, device=settings.shard_device)
    if values is not None:
        values.finish()
    reduce_unused(model, reduces_all=settings.mesh.ndim > 1)


@dataclass(frozen=True, slots=True)
class _GroupTensors:
    """The tensors of one group, by where their values come from and what becomes of them.

    Attributes:
        owned: Parameters that are sharded.
        received: What rank 0 sends.
        received_shards: Of these, the parameters that are sharded.
        whole_in_files: What stays whole and is in files.
    """

    owned: list[NamedTensor]
    received: list[NamedTensor]
    received_shards: list[NamedTensor]
    whole_in_files: list[NamedTensor]

    @classmethod
    def of(
        cls, tensors: Sequence[NamedTensor], *, whole: Collection[str], in_files: Collection[str]
    ) -> _GroupTensors:
        owned = [found for found in tensors if found.is_parameter and found.names[0] not in whole]
        received = [found for found in tensors if found.names[0] not in in_files]
        return cls(
            owned,
            received,
            [found for found in owned if found.names[0] not in in_files],
            [found for found in tensors if found.names[0] in in_files and found not in owned],
        )


def values_in_files(
    model: nn.Module,
    tensors: Sequence[NamedTensor],
    missing: Sequence[NamedTensor],
    files: str | os.PathLike[str] | None,
) -> FileValues | None:
    """Return where the values come from that rank 0 does not have, None if it has all."""
    if files is None:
        refuse_missing(missing)
        return None
    if missing:
        return FileValues(files, tensors, missing)
    logger.warning(
        "`load_weights_from` has no effect on the %s: rank 0 has all its values. To read them from files, build "
        "the model on the meta device, `with init_empty_weights(include_buffers=False):`.",
        type(model).__name__,
    )
    return None


def cut_group(
    members: list[nn.Module],
    group: ShardGroup,
    owned: Sequence[NamedTensor],
    settings: ShardSettings,
    *,
    ignored: Collection[nn.Parameter],
    cut_layers: Sequence[Callable[[Sequence[NamedTensor]], None]] = (),
) -> None:
    """Cut the parameters of one group, which have their values, over the ranks of the mesh.

    Args:
        members: Its modules.
        group: How it is gathered.
        owned: The parameters that are sharded, on the device.
        settings: How to shard.
        ignored: Parameters of the modules that stay whole.
        cut_layers: Each is called with ``owned`` to cut the layers that hold them over another axis before.
    """
    if settings.has_master_weights:
        store_in_fp32(found.tensor for found in owned)
    for cut in cut_layers:
        cut(owned)
    # Why: docs/decisions/0011-models-are-always-sharded-through-one-path.md
    fully_shard(
        _unit(members),
        mesh=settings.expert_mesh if group.has_experts else settings.mesh,
        reshard_after_forward=settings.reshard_after_forward
        and not group.is_tail
        and ROOT not in group.modules,
        mp_policy=replace(settings.policy, param_dtype=None) if group.keeps_fp32 else settings.policy,
        offload_policy=settings.offload,
        ignored_params=set(ignored) or None,
    )
    for found in owned:
        # The shard has its own memory. An optimizer made before may hold the whole parameter until it is
        # prepared, and so would keep the memory of the whole model.
        found.tensor.data = found.tensor.data.new_empty(0)


def _unit(members: list[nn.Module]) -> nn.Module | list[nn.Module]:
    """Return what `fully_shard` takes for a group.

    Before torch 2.13 it refuses a single `ModuleList` or `ModuleDict`, even one that can be called, but takes it in a
    list. Delete this when we require that release.
    """
    (first, *others) = members
    is_container = isinstance(first, (nn.ModuleList, nn.ModuleDict))
    is_called = type(first).forward is not nn.Module.forward
    return members if others or (is_container and is_called) else first


def gather_once(model: nn.Module, groups: Sequence[ShardGroup]) -> None:
    """Gather each group once, so that any part of ``model`` may run first, also under `torch.inference_mode`.

    torch takes the first unit that runs for the root, and makes the memory of gathered parameters when it first gathers
    them: under inference mode it could never be written to outside of it ("Inplace update to inference tensor").
    """
    state: Any = model._get_fsdp_state()  # type: ignore[operator]
    state._lazy_init()  # which has no public name in torch 2.13
    for group in groups:
        unit: Any = model.get_submodule(group.modules[0])
        unit.unshard()
        unit.reshard()


def reduce_unused(model: nn.Module, *, reduces_all: bool) -> None:
    """Count parameters that a rank did not use as zero in the reduction.

    Otherwise ranks that use different ones, such as experts, would add up gradients of different parameters without
    a word. Unless ``reduces_all``, a unit that did not run keeps no gradient. Ranks that gather units together run the
    same ones; replicas may not, and must reduce all.
    """
    for module in model.modules():
        group: Any = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
        if group is not None:
            group.has_run = False
            group.post_backward = partial(_reduce_all, group, reduces_all=reduces_all)


def _reduce_all(group: Any, *unused: Any, reduces_all: bool) -> None:
    """Reduce the gradients of a group of `fully_shard` that has run, zeros for the parameters that have none."""
    is_gathered = not group.is_sharded or group._all_gather_result is not None
    group.has_run |= reduces_all or is_gathered or bool(group._post_forward_indices)
    for parameter in group.fsdp_params if group.reduce_grads and group.has_run else ():
        whole: Any = getattr(parameter, "_unsharded_param", None)  # None until it is gathered the first time
        is_counted = whole is None or not whole.requires_grad or whole.grad is not None
        if not is_counted and parameter.unsharded_accumulated_grad is None:
            whole.grad = torch.zeros_like(whole)
    group.has_run &= not group.reduce_grads
    type(group).post_backward(group, *unused)


def is_sharded(model: nn.Module) -> bool:
    """Whether parameters of ``model`` are spread over ranks already, whoever did it."""
    return isinstance(model, FSDPModule) or any(
        isinstance(parameter, DTensor) for parameter in model.parameters()
    )


def store_in_fp32(parameters: Iterable[torch.Tensor]) -> None:
    """Convert trained parameters of half precision to fp32, in place."""
    for tensor in parameters:
        if tensor.requires_grad and tensor.dtype in (torch.float16, torch.bfloat16):
            tensor.data = tensor.data.float()
