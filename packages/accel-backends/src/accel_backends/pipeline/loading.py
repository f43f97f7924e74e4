"""The values of a rank's stages, from rank 0 or from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accel_backends.fsdp.apply import ShardPlan, shard_group
from accel_backends.fsdp.config import ShardSettings
from accel_backends.fsdp.groups import ROOT, ShardGroup, tensors_of_groups
from accel_backends.fsdp.replicated import UnusedParameters
from accel_backends.fsdp.values import (
    check_same_model,
    replace_tensor,
    take_values_of_rank_0,
    values_in_files,
)
from accel_backends.pipeline.stage_root import StageRoot
from accel_backends.pipeline.stages import StagedModel
from accel_ops.named_tensors import NamedTensor


@dataclass(frozen=True, slots=True)
class StageSharding:
    """How the stages of a rank are cut over the ranks that have the same ones.

    A group of which every parameter belongs to one stage alone is gathered by itself; what is left, with each stage.

    Attributes:
        root: The root of the stages.
        plan: How the whole model would be sharded.
        settings: How the stages are.
    """

    root: StageRoot
    plan: ShardPlan
    settings: ShardSettings

    def shard_unit(self, group: ShardGroup, owned: Sequence[NamedTensor], *, stage: int) -> None:
        """Cut a group that one stage alone computes with; its parameters have their values."""
        members = [self.root.model.get_submodule(name) for name in group.modules]
        self._shard(members, group, owned)
        self.root.add_unit(stage, members[0])

    def shard_root(self, group: ShardGroup, owned: Sequence[NamedTensor]) -> None:
        """Cut what is left, the parameters of which have their values."""
        self._shard([self.root], group, owned)

    def _shard(self, members: list[nn.Module], group: ShardGroup, owned: Sequence[NamedTensor]) -> None:
        chosen = {id(found.tensor) for found in owned}
        shard_group(
            members,
            group,
            owned,
            self.settings,
            ignored={one for one in self.root.model.parameters() if id(one) not in chosen},
            cut_layers=self.plan.cut_layers,
        )


def load_stages(
    staged: StagedModel,
    *,
    device: torch.device,
    files: str | os.PathLike[str] | None = None,
    sharding: StageSharding | None = None,
) -> set[str]:
    """Move the values of this rank's stages to its device, and drop those of other stages. Every rank must call it.

    All ranks take the values of rank 0; other ranks may have the model on the meta device. Tensors that rank 0 has on
    the meta device, too, each rank reads from files, those of its stages only. Without files they get memory.

    Args:
        staged: The model.
        device: That of this rank.
        files: Safetensors files of the model.
        sharding: How the stages are sharded over their ranks; None if each stage has one.

    Returns:
        The names of the tensors that have memory but no values yet, the same on every rank.

    Raises:
        ConfigError: If the ranks have different models.
        CheckpointError: If the files do not fit the model or cannot be read.
    """
    missing = check_same_model(staged.tensors, device=device)
    is_unfilled = bool(missing) and files is None
    values = None if is_unfilled else values_in_files(staged.model, staged.tensors, missing, files)
    in_files = {found.names[0] for found in missing}
    left: list[NamedTensor] = []
    for group, members in _groups(staged, sharding):
        here = [found for found in members if staged.is_held(found)]
        cut = [] if sharding is None else [found for found in here if _is_sharded(found, sharding)]
        for found in members:
            if found.names[0] not in in_files:
                take_values_of_rank_0([found], device=device)
            elif values is None and found in here:
                replace_tensor(found, torch.empty_like(found.tensor, device=device))
            elif values is not None and found in here and found not in cut:
                values.fill(found, device=device)
            if found not in here:
                staged.drop(found)
        if sharding is None or group is None:
            continue
        stages = frozenset[int]().union(*(staged.users_of(one) for one in members if one.is_parameter))
        if ROOT in group.modules:
            cut = [*left, *cut]
            sharding.shard_root(group, cut)
        elif cut and len(stages) == 1:
            sharding.shard_unit(group, cut, stage=min(stages))
        else:
            left += cut
            continue
        for found in cut:
            if values is not None and found.names[0] in in_files:
                values.fill_shard(found, device=sharding.settings.shard_device)
    if values is not None:
        values.finish()
    if sharding is not None:
        UnusedParameters(sharding.root, reduces_all=True)
        _note_whole(staged, sharding)
        if staged.num_stages > staged.num_ranks:
            sharding.root.disable_backward_prefetch()
    staged.refresh()
    return {name for found in missing for name in found.names} if is_unfilled else set()


def _groups(
    staged: StagedModel, sharding: StageSharding | None
) -> list[tuple[ShardGroup | None, list[NamedTensor]]]:
    """Return the tensors of the model by group, in the same order on all ranks."""
    if sharding is None:
        return [(None, staged.tensors)]
    groups = sharding.plan.groups
    return list(zip(groups, tensors_of_groups(staged.tensors, groups), strict=True))


def _is_sharded(found: NamedTensor, sharding: StageSharding) -> bool:
    """Whether a tensor of the stage is sharded: a parameter that does not stay replicated."""
    return found.is_parameter and found.names[0] not in sharding.plan.whole


def _note_whole(staged: StagedModel, sharding: StageSharding) -> None:
    for found in staged.tensors:
        if found.names[0] in sharding.plan.whole and staged.is_held(found):
            parameter = sharding.root.model.get_parameter(found.names[0])
            for stage in staged.users_of(found) if parameter.requires_grad else ():
                sharding.root.add_whole(stage, parameter)
