"""What a rank keeps of a model: the values of its stage, which come from rank 0 or from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accel_backends.pipelining.stage_root import StageRoot
from accel_backends.pipelining.stages import StagedModel
from accel_backends.sharding.settings import ShardSettings
from accel_backends.sharding.shard import cut_group, reduce_unused, values_in_files
from accel_backends.sharding.shard_plan import ShardPlan
from accel_backends.sharding.units import ROOT, ShardGroup, tensors_of_groups
from accel_backends.sharding.values import check_same_model, take_values_of_rank_0
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

    def cut_unit(self, group: ShardGroup, owned: Sequence[NamedTensor], *, stage: int) -> None:
        """Cut a group that one stage alone computes with; its parameters have their values."""
        members = [self.root.model.get_submodule(name) for name in group.modules]
        self._cut(members, group, owned)
        self.root.add_unit(stage, members[0])

    def cut_root(self, group: ShardGroup, owned: Sequence[NamedTensor]) -> None:
        """Cut what is left, the parameters of which have their values."""
        self._cut([self.root], group, owned)

    def _cut(self, members: list[nn.Module], group: ShardGroup, owned: Sequence[NamedTensor]) -> None:
        chosen = {id(found.tensor) for found in owned}
        cut_group(
            members,
            group,
            owned,
            self.settings,
            ignored={one for one in self.root.model.parameters() if id(one) not in chosen},
            cut_layers=self.plan.cut_layers,
        )


def hold_stage(
    staged: StagedModel,
    *,
    device: torch.device,
    files: str | os.PathLike[str] | None = None,
    sharding: StageSharding | None = None,
) -> None:
    """Let this rank have the values of its stage on its device, and of other stages none. Every rank must call it.

    All ranks take the values of rank 0, and other ranks may hold the model on the meta device. What is on the meta
    device on rank 0, too, each rank reads from files, that of its own stage alone.

    Args:
        staged: The model, of which a trace has shown which stage uses what.
        device: That of this rank.
        files: Safetensors files of the model.
        sharding: How the stage is cut over its ranks; None if each stage has one.

    Raises:
        ConfigError: If the ranks have different models, or rank 0 has no values and there are no files.
        CheckpointError: If the files do not fit the model or cannot be read.
    """
    missing = check_same_model(staged.tensors, device=device)
    values = values_in_files(staged.model, staged.tensors, missing, files)
    in_files = {found.names[0] for found in missing}
    left: list[NamedTensor] = []
    for group, members in _groups(staged, sharding):
        here = [found for found in members if staged.is_held(found)]
        cut = [] if sharding is None else [found for found in here if _is_sharded(found, staged, sharding)]
        for found in members:
            if found.names[0] not in in_files:
                take_values_of_rank_0([found], device=device)
            elif values is not None and found in here and found not in cut:
                values.fill(found, device=device)
            if found not in here:
                staged.drop(found)
        if sharding is None or group is None:
            continue
        stages = frozenset[int]().union(*(staged.users_of(one) for one in members if one.is_parameter))
        if ROOT in group.modules:
            cut = [*left, *cut]
            sharding.cut_root(group, cut)
        elif cut and len(stages) == 1:
            sharding.cut_unit(group, cut, stage=min(stages))
        else:
            left += cut
            continue
        for found in cut:
            if values is not None and found.names[0] in in_files:
                values.fill_shard(found, device=sharding.settings.shard_device)
    if values is not None:
        values.finish()
    if sharding is not None:
        reduce_unused(sharding.root, reduces_all=True)
        _note_whole(staged, sharding)
        if staged.num_stages > staged.num_ranks:
            sharding.root.leave_units_to_themselves()
    staged.refresh()


def _groups(
    staged: StagedModel, sharding: StageSharding | None
) -> list[tuple[ShardGroup | None, list[NamedTensor]]]:
    """Return the tensors of the model by group, in the same order on all ranks."""
    if sharding is None:
        return [(None, staged.tensors)]
    known = {id(found.tensor): found for found in staged.tensors}
    groups = sharding.plan.groups
    return [
        (group, [known[id(found.tensor)] for found in members])
        for group, members in zip(groups, tensors_of_groups(staged.model, groups), strict=True)
    ]


def _is_sharded(found: NamedTensor, staged: StagedModel, sharding: StageSharding) -> bool:
    """Tell whether a tensor of the stage is cut: a parameter that something computes with, and not to stay whole."""
    is_whole = found.names[0] in sharding.plan.whole or not staged.users_of(found)
    return found.is_parameter and not is_whole


def _note_whole(staged: StagedModel, sharding: StageSharding) -> None:
    for found in staged.tensors:
        if found.names[0] in sharding.plan.whole and staged.is_held(found):
            parameter = sharding.root.model.get_parameter(found.names[0])
            for stage in staged.users_of(found) if parameter.requires_grad else ():
                sharding.root.add_whole(stage, parameter)
