"""The output of ``accel plan``: a plan, or the layouts that fit, as text and as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from accel_backends.plans.estimate import StageEstimate
from accel_backends.plans.fitting import Proposal
from accel_backends.plans.memory import Bytes, PlannedModel, PlannedParameter, PlannedUnit
from accel_bigmodel.estimate.command import create_ascii_table
from accel_ops.byte_sizes import convert_bytes
from accel_state.mesh_layout import MeshLayout

_MOST_PROPOSALS = 10


def plan_text(stages: Sequence[StageEstimate], *, name: str) -> str:
    """Return for each stage a table of its units and their parameters, then the memory and traffic of a rank."""
    return "\n".join(
        _stage_text(stage, name=name if len(stages) == 1 else f"stage {number} of {name}")
        for number, stage in enumerate(stages)
    )


def plan_data(stages: Sequence[StageEstimate], *, name: str) -> dict[str, Any]:
    """Return the same in bytes, with every unit; a list if there are several stages."""
    if len(stages) == 1:
        return _stage_data(stages[0], name=name)
    return {"model": name, "stages": [_stage_data(stage, name=name) for stage in stages]}


def _stage_text(stage: StageEstimate, *, name: str) -> str:
    planned = stage.planned
    rows = []
    for label, unit in unit_rows(planned):
        sizes = (unit.whole.parameters, unit.bytes_on(0).parameters)
        rows.append([label, "", "", *map(convert_bytes, sizes)])
        for parameter in unit.parameters:
            sizes = (parameter.whole.parameters, parameter.bytes_on(0).parameters)
            frozen = "" if parameter.is_trainable else " (frozen)"
            shape = "×".join(map(str, parameter.shape)) or "scalar"
            placement = placement_of(parameter, num_replicas=planned.num_replicas)
            rows.append(
                [f"  {relative_name(unit, parameter)}{frozen}", shape, placement, *map(convert_bytes, sizes)]
            )
    lines = [
        _table(
            ("Unit", "Shape", "Placement", "Whole", "Largest shard"), rows, title_of(planned, f"`{name}`")
        ),
        (
            f"Parameters, gradients and AdamW's state in float32: {convert_bytes(planned.largest.total)} on the "
            f"largest rank; one process alone {convert_bytes(planned.whole.total)}"
        ),
    ]
    if planned.smallest != planned.largest:
        lines.append(f"The smallest rank: {convert_bytes(planned.smallest.total)}")
    parts = {**stage.memory, "total": stage.total}
    width = max(map(len, parts))
    lines.append("Memory of the rank that needs most:")
    lines += [f"  {part.ljust(width)}  {convert_bytes(size)}" for part, size in parts.items()]
    if stage.collectives:
        lines.append(f"In a step each rank sends {convert_bytes(round(stage.bytes_sent))}:")
    for one, count in sorted(stage.collectives.items()):
        kind, axes = one.kind.replace("_", "-"), ", ".join(one.axes)
        lines.append(
            f"  {count} × {kind} of {convert_bytes(one.num_bytes)} among {one.num_ranks} ranks ({axes})"
        )
    return "\n".join(lines)


def _stage_data(stage: StageEstimate, *, name: str) -> dict[str, Any]:
    planned = stage.planned
    return {
        "model": name,
        "num_replicas": planned.num_replicas,
        "num_shards": planned.num_shards,
        "num_sharing": planned.num_sharing,
        "num_expert_ranks": planned.num_expert_ranks,
        "units": [
            {
                "modules": list(unit.modules),
                "is_tail": unit.is_tail,
                "parameters": [
                    {
                        "name": parameter.name,
                        "shape": list(parameter.shape),
                        "placement": placement_of(parameter, num_replicas=planned.num_replicas),
                        "is_trainable": parameter.is_trainable,
                        "bytes": parameter.whole.parameters,
                        "largest_shard_bytes": parameter.bytes_on(0).parameters,
                    }
                    for parameter in unit.parameters
                ],
            }
            for unit in planned.units
        ],
        "largest_rank": _bytes_data(planned.largest),
        "smallest_rank": _bytes_data(planned.smallest),
        "one_process": _bytes_data(planned.whole),
        "buffer_bytes": planned.buffer_bytes,
        "gathered_bytes": planned.gathered_bytes,
        "memory": {**stage.memory, "total": stage.total},
        "bytes_sent": round(stage.bytes_sent),
        "collectives": [
            {"kind": one.kind, "axes": list(one.axes), "ranks": one.num_ranks, "bytes": one.num_bytes, "count": count}
            for one, count in sorted(stage.collectives.items())
        ],
    }  # fmt: skip


def unit_rows(planned: PlannedModel) -> list[tuple[str, PlannedUnit]]:
    """Return labels and units in the order of the model; consecutive equal units under one parent are one row."""
    runs = [list(run) for _, run in groupby(planned.units, key=_kind)]
    return [(_label(run), run[0]) for run in runs]


def _kind(unit: PlannedUnit) -> object:
    parameters = tuple(
        (relative_name(unit, one), one.shape, one.element_bytes, one.is_trainable) for one in unit.parameters
    )
    parent = unit.modules[0].rpartition(".")[0] if len(unit.modules) == 1 else unit.modules
    return parent, unit.is_tail, unit.is_root, parameters


def _label(units: Sequence[PlannedUnit]) -> str:
    first = units[0]
    if first.is_root:
        return "everything else"
    if len(units) == 1:
        return " + ".join(first.modules)
    last = units[-1].modules[0].rpartition(".")[2]
    return f"{first.modules[0]} … {last} ({len(units)} units)"


def relative_name(unit: PlannedUnit, parameter: PlannedParameter) -> str:
    """Return the name of a parameter, relative to its unit if that is one module."""
    return parameter.name if len(unit.modules) > 1 else parameter.name.removeprefix(f"{unit.modules[0]}.")


def title_of(planned: PlannedModel, name: str) -> str:
    """Return the title of the table: the model, its replicas and ranks."""
    replicas = f"{planned.num_replicas} copies of {name}, each" if planned.num_replicas > 1 else name
    experts = f", experts spread over {planned.num_expert_ranks}" if planned.num_expert_ranks > 1 else ""
    if planned.num_sharing > 1:
        shared = f"layers shared by {planned.num_sharing}"
        return f"{replicas} on {planned.num_shards} × {planned.num_sharing} ranks, {shared}{experts}"
    return f"{replicas} on {planned.num_shards} {'rank' if planned.num_shards == 1 else 'ranks'}{experts}"


def placement_of(parameter: PlannedParameter, *, num_replicas: int) -> str:
    """Return the placements of a parameter in torch's notation; the last is over the TP or expert ranks."""
    if not parameter.is_sharded:
        return "whole"
    placements = ["Replicate"] if num_replicas > 1 else []
    placements.append("Shard(0)")
    if parameter.num_expert_ranks > 1:
        placements.append("Shard(0)")
    elif parameter.num_sharing > 1:
        placements.append("Replicate" if parameter.layer_dim is None else f"Shard({parameter.layer_dim})")
    return ", ".join(placements)


def fitting_text(proposals: Sequence[Proposal], *, memory: int, wanted: str) -> str:
    """Return the table of the layouts that fit, sorted by their traffic; or the one that needs least memory.

    Args:
        proposals: The layouts.
        memory: Of a rank, in bytes.
        wanted: Model and ranks, in words.
    """
    if not proposals:
        return f"There is no layout for {wanted}."
    fitting = [one for one in proposals if one.num_bytes <= memory]
    if not fitting:
        nearest = min(proposals, key=lambda one: one.num_bytes)
        return (
            f"No layout fits {wanted}. Closest comes {layout_text(nearest.layout)}, with "
            f"{convert_bytes(nearest.num_bytes)} on the rank that needs most."
        )
    rows = [
        [layout_text(one.layout), convert_bytes(one.num_bytes), convert_bytes(round(one.sent_per_sequence))]
        for one in fitting[:_MOST_PROPOSALS]
    ]
    table = _table(("Layout", "Memory", "Sent per sequence"), rows, wanted)
    more = len(fitting) - len(rows)
    return f"{table}\n{more} more fit, which send more." if more else table


def fitting_data(proposals: Sequence[Proposal], *, memory: int) -> list[dict[str, Any]]:
    """Return all layouts in bytes, sorted by their traffic."""
    return [
        {
            "layout": {axis: size for axis, size in one.layout.sizes.items() if size > 1},
            "memory": one.num_bytes,
            "sent_per_sequence": round(one.sent_per_sequence),
            "fits": one.num_bytes <= memory,
        }
        for one in proposals
    ]


def failed_text(failed: Mapping[MeshLayout, str]) -> str:
    """Return a line for each error, with the layouts that failed with it; an empty string without errors."""
    layouts: dict[str, list[str]] = {}
    for layout, error in failed.items():
        layouts.setdefault(error, []).append(layout_text(layout))
    return "".join(f"Layouts with {' or '.join(names)} failed. {error}\n" for error, names in layouts.items())


def layout_text(layout: MeshLayout) -> str:
    """Return the axes of a layout that are larger than 1."""
    sizes = [f"{axis} {size}" for axis, size in layout.sizes.items() if size > 1]
    return " × ".join(sizes) + (f", ep {layout.ep}" if layout.ep > 1 else "") if sizes else "one rank"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    width = max(len(row[0]) for row in rows)
    return create_ascii_table(headers, [[row[0].ljust(width), *row[1:]] for row in rows], title)


def _bytes_data(held: Bytes) -> dict[str, int]:
    return {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "total": held.total,
    }
