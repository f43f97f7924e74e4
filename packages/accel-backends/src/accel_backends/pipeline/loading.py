"""The values of a rank's stages, from rank 0 or from files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from accel_backends.fsdp.apply import RunAxes, ShardPlan, shard_group
from accel_backends.fsdp.config import FSDPConfig
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
    """How the stages of a rank are sharded over the ranks that have the same ones.

    A group of which every parameter belongs to one stage is gathered on its own; other parameters, with each stage.

    Attributes:
        root: The root of the stages.
        plan: How the full model would be sharded.
        config: How the stages are.
        axes: Over which ranks.
    """

    root: StageRoot
    plan: ShardPlan
    config: FSDPConfig
    axes: RunAxes

    def shard(self, members: list[nn.Module], group: ShardGroup, owned: Sequence[NamedTensor]) -> None:
        """Shard the parameters ``owned`` of a group, which have their values."""
        chosen = {id(found.tensor) for found in owned}
        ignored = {one for one in self.root.model.parameters() if id(one) not in chosen}
        cut_layers = self.plan.cut_layers
        shard_group(members, group, owned, self.config, self.axes, ignored=ignored, cut_layers=cut_layers)


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
    groups = (None,) if sharding is None else sharding.plan.groups
    whole = None if sharding is None else sharding.plan.whole
    of_groups = (
        [staged.tensors] if sharding is None else tensors_of_groups(staged.tensors, sharding.plan.groups)
    )
    for group, members in zip(groups, of_groups, strict=True):  # in the same order on all ranks
        here = [found for found in members if staged.is_held(found)]
        cut = [one for one in here if whole is not None and one.is_parameter and one.names[0] not in whole]
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
            sharding.shard([sharding.root], group, cut)
        elif cut and len(stages) == 1:
            units = [staged.model.get_submodule(name) for name in group.modules]
            sharding.shard(units, group, cut)
            sharding.root.add_unit(min(stages), units[0])
        else:
            left += cut
            continue
        for found in cut:
            if values is not None and found.names[0] in in_files:
                values.fill_shard(found, device=sharding.config.shard_device(device))
    if values is not None:
        values.finish()
    if sharding is not None:
        UnusedParameters(sharding.root, reduces_all=True)
        if staged.num_stages > staged.num_ranks:
            sharding.root.disable_backward_prefetch()
    staged.refresh()
    return {name for found in missing for name in found.names} if is_unfilled else set()
