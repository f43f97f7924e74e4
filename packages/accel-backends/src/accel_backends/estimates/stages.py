"""Pipeline stages in an estimate: the parts of a planned model on their ranks, and the passes that they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from accel_backends.estimates.memory import PlannedModel, PlannedParameter, PlannedUnit
from accel_backends.fsdp.groups import ROOT
from accel_backends.pipeline.schedules import SCHEDULES, Action, Pass, ScheduleArgs
from accel_backends.plans.stages import Stages
from accel_ops.named_tensors import named_tensors

ONE_BATCH = (Action(Pass.FORWARD, 0, 0), Action(Pass.BACKWARD, 0, 0))
"""What a rank does without a pipeline."""
Users = dict[str, frozenset[int]]
"""The stages that compute with each tensor, by its first name."""


def users_in(model: nn.Module, stages: Stages) -> Users:
    """Return the stages of each parameter and buffer."""
    return {found.names[0]: stages.of(found) for found in named_tensors(model)}


def stage_of_model(model: nn.Module, planned: PlannedModel, users: Users, number: int) -> PlannedModel:
    """Return the part of a planned model on the ranks of one stage.

    A unit of which one stage has all is gathered by itself; what a stage has of others, with the root.

    Args:
        model: The model.
        planned: All of it.
        users: Who computes with what.
        number: That of the stage.
    """
    units: list[PlannedUnit] = []
    left: list[PlannedParameter] = []
    for unit in planned.units:
        stages = frozenset[int]().union(*(users[one.name] for one in unit.parameters))
        here = tuple(one for one in unit.parameters if number in users[one.name])
        if len(stages) == 1 and here and not unit.is_root:
            units.append(unit)
            continue
        left += here
    if left:
        units.append(PlannedUnit((ROOT,), False, tuple(left)))
    buffers = sum(
        found.tensor.nbytes
        for found in named_tensors(model)
        if not found.is_parameter and number in users[found.names[0]]
    )
    return replace(planned, units=tuple(units), buffer_bytes=buffers)


def actions_of(schedule: str, *, stage: int, num_stages: int, num_micro_batches: int) -> Sequence[Action]:
    """Return what a rank with one stage does in a step."""
    if num_stages == 1:
        return ONE_BATCH
    return SCHEDULES[schedule](ScheduleArgs(stage, num_stages, 1, num_micro_batches))


def num_forward(actions: Sequence[Action]) -> int:
    """Return how many forward passes there are: one for each micro-batch."""
    return sum(action.kind is Pass.FORWARD for action in actions)


def num_gathers(actions: Sequence[Action], *, is_kept: bool) -> int:
    """Return how often a unit of a stage is gathered.

    Args:
        actions: What the rank does.
        is_kept: Whether the unit stays gathered after a forward pass.
    """
    count, is_gathered = 0, False
    for action in actions:
        if action.kind is Pass.BACKWARD_INPUT and action.stage == 0:
            continue  # no gradients of inputs are needed, so the pass to the parameters computes everything
        count += not is_gathered
        is_gathered = is_kept if action.kind is Pass.FORWARD else action.kind is Pass.BACKWARD_INPUT
    return count


def most_kept(actions: Sequence[Action]) -> int:
    """Return of how many micro-batches activations are kept at a time, at most."""
    kept = most = 0
    for action in actions:
        kept += {Pass.FORWARD: 1, Pass.BACKWARD_INPUT: 0}.get(action.kind, -1)
        most = max(most, kept)
    return most
