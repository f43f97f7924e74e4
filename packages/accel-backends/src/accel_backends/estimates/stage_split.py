"""What the ranks of one pipeline stage hold of a planned model."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from accel_backends.estimates.memory import PlannedModel, PlannedParameter, PlannedUnit
from accel_backends.fsdp.groups import ROOT
from accel_backends.plans.stages import Stages
from accel_ops.named_tensors import named_tensors

Users = dict[str, frozenset[int]]
"""The stages that compute with each tensor, by its first name."""


def users_in(model: nn.Module, stages: Stages) -> Users:
    """Return the stages of each parameter and buffer."""
    return {found.names[0]: stages.of(found) for found in named_tensors(model)}


def stage_of_model(model: nn.Module, planned: PlannedModel, users: Users, number: int) -> PlannedModel:
    """Return what the ranks of one stage hold of a planned model.

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
