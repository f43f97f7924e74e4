"""Which stage of a pipeline computes with which parameters and buffers, as training will find it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from accel_backends.pipelining.experts import experts_of, traceable_experts
from accel_backends.pipelining.stages import StagedModel
from accel_backends.plans.forward_sizes import run_on_tokens
from accel_backends.plans.memory import PlannedModel, PlannedParameter, PlannedUnit
from accel_backends.plans.plan import ParallelPlan
from accel_backends.sharding.units import ROOT
from accel_ops.named_tensors import named_tensors

_MOST_TOKENS = 64  # how many there are makes no difference

Users = dict[str, frozenset[int]]
"""The stages that compute with each tensor, by its first name; none of them: every rank keeps it."""


def users_in_run(model: nn.Module, plan: ParallelPlan, starts: Sequence[str], *, num_tokens: int) -> Users:
    """Return who computes with what in a run of ``model`` on tokens, without values.

    Args:
        model: On any device, meta included; it stays as it is.
        plan: From `resolve_plan`.
        starts: The modules with which stages begin, from the second on.
        num_tokens: Of a sequence.

    Raises:
        ConfigError: If the forward cannot be cut there.
    """
    staged = StagedModel(model, starts, device=torch.device("cpu"))
    tokens = torch.zeros(1, min(num_tokens, _MOST_TOKENS), dtype=torch.long)
    with traceable_experts(experts_of(model, plan)):
        trace = staged.trace(lambda: run_on_tokens(model, tokens))
    return {found.names[0]: users for found, users in zip(staged.tensors, trace.users, strict=True)}


def users_by_order(model: nn.Module, starts: Sequence[str]) -> Users:
    """Return who computes with what if modules run in the order in which the model lists them.

    A tied parameter belongs to the stages of all modules that hold it.
    """
    order = {name: place for place, name in enumerate(dict(model.named_modules(remove_duplicate=False)))}
    begins = [order[name] for name in starts]

    def stage_of(name: str) -> int:
        place = order[name.rpartition(".")[0]]
        return sum(begin <= place for begin in begins)

    return {found.names[0]: frozenset(map(stage_of, found.names)) for found in named_tensors(model)}


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
        left += [
            replace(one, is_sharded=False, is_trainable=False)
            for one in unit.parameters
            if not users[one.name]
        ]
    if left:
        units.append(PlannedUnit((ROOT,), False, tuple(left)))
    buffers = sum(
        found.tensor.nbytes
        for found in named_tensors(model)
        if not found.is_parameter and (number in users[found.names[0]] or not users[found.names[0]])
    )
    return replace(planned, units=tuple(units), buffer_bytes=buffers)
