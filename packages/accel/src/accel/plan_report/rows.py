"""The units of a plan as rows: equal units that follow one another are one row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from accel_backends.plans.memory import PlannedModel, PlannedParameter, PlannedUnit

ROOT_LABEL = "everything else"


@dataclass(frozen=True, slots=True)
class UnitRow:
    """Units with equal parameters under one parent.

    Attributes:
        label: Their names.
        units: The units.
    """

    label: str
    units: tuple[PlannedUnit, ...]

    @property
    def unit(self) -> PlannedUnit:
        """One of them."""
        return self.units[0]

    def names(self) -> list[str]:
        """Return the names of the parameters of one unit, relative to it where it is one module."""
        return [_relative(self.unit, parameter) for parameter in self.unit.parameters]


def unit_rows(planned: PlannedModel) -> list[UnitRow]:
    """Return the rows of a model, in its order."""
    return [
        UnitRow(_label(units), units)
        for _, run in groupby(planned.units, key=_kind)
        for units in [tuple(run)]
    ]


def title_of(planned: PlannedModel, name: str) -> str:
    """Return what is shown, in a few words."""
    copies = f"{planned.num_replicas} copies of {name}, each" if planned.num_replicas > 1 else name
    spread = f", experts spread over {planned.num_expert_ranks}" if planned.num_expert_ranks > 1 else ""
    if planned.num_sharing > 1:
        shared = f"layers shared by {planned.num_sharing}"
        return f"{copies} on {planned.num_shards} × {planned.num_sharing} ranks, {shared}{spread}"
    return f"{copies} on {planned.num_shards} {'rank' if planned.num_shards == 1 else 'ranks'}{spread}"


def placement_of(parameter: PlannedParameter, *, num_replicas: int) -> str:
    """Return how a parameter is placed, as torch writes it; last, over those that share layer or experts."""
    if not parameter.is_sharded:
        return "whole"
    placements = ["Replicate"] if num_replicas > 1 else []
    placements.append("Shard(0)")
    if parameter.num_expert_ranks > 1:
        placements.append("Shard(0)")
    elif parameter.num_sharing > 1:
        placements.append("Replicate" if parameter.layer_dim is None else f"Shard({parameter.layer_dim})")
    return ", ".join(placements)


def _kind(unit: PlannedUnit) -> object:
    parameters = tuple(
        (_relative(unit, found), found.shape, found.element_bytes, found.is_trainable)
        for found in unit.parameters
    )
    parent = unit.modules[0].rpartition(".")[0] if len(unit.modules) == 1 else unit.modules
    return parent, unit.is_tail, unit.is_root, parameters


def _label(units: Sequence[PlannedUnit]) -> str:
    first = units[0]
    if first.is_root:
        return ROOT_LABEL
    if len(units) == 1:
        return " + ".join(first.modules)
    last = units[-1].modules[0].rpartition(".")[2]
    return f"{first.modules[0]} … {last} ({len(units)} units)"


def _relative(unit: PlannedUnit, parameter: PlannedParameter) -> str:
    return parameter.name if len(unit.modules) > 1 else parameter.name.removeprefix(f"{unit.modules[0]}.")
