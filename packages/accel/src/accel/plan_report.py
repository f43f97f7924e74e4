"""The output of ``accel plan``: a plan, or the layouts that fit, as data and, made from that, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from accel_backends.estimates.estimate import StageEstimate
from accel_backends.estimates.fitting import Proposal
from accel_backends.estimates.memory import PlannedParameter
from accel_bigmodel.estimate.command import create_ascii_table
from accel_ops.byte_sizes import convert_bytes
from accel_state.mesh_layout import MeshLayout

Data = dict[str, Any]

_MOST_PROPOSALS = 10


def plan_data(stages: Sequence[StageEstimate], *, name: str, layout: MeshLayout) -> Data:
    """Return a plan in bytes, with every unit; a list of its stages if there are several."""
    data = [_stage_data(stage) for stage in stages]
    head = {"model": name, "layout": _layout_data(layout)}
    return {**head, **data[0]} if len(data) == 1 else {**head, "stages": data}


def _stage_data(stage: StageEstimate) -> Data:
    planned = stage.planned
    return {
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
        "one_process": planned.whole.total,
        "memory": {**stage.memory, "total": stage.total},
        "bytes_sent": round(stage.bytes_sent),
        "collectives": [
            {"kind": op.kind, "axes": list(op.axes), "ranks": op.num_ranks, "bytes": op.num_bytes, "count": count}
            for op, count in sorted(stage.collectives.items())
        ],
    }  # fmt: skip


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


def plan_text(data: Data) -> str:
    """Return for each stage of `plan_data` a table of its units, then the memory and traffic of a rank."""
    name, layout = data["model"], _layout_text(data["layout"])
    if "stages" not in data:
        return _stage_text(data, title=f"`{name}` on {layout}")
    return "\n".join(
        _stage_text(stage, title=f"`stage {number} of {name}` on {layout}")
        for number, stage in enumerate(data["stages"])
    )


def _stage_text(stage: Data, *, title: str) -> str:
    rows = []
    for label, unit in _unit_rows(stage["units"]):
        sizes = [sum(item[size] for item in unit["parameters"]) for size in ("bytes", "largest_shard_bytes")]
        rows.append([label, "", "", *map(convert_bytes, sizes)])
        for item in unit["parameters"]:
            name = f"  {_relative_name(unit, item)}" + ("" if item["is_trainable"] else " (frozen)")
            shape = "×".join(map(str, item["shape"])) or "scalar"
            sizes = [item["bytes"], item["largest_shard_bytes"]]
            rows.append([name, shape, item["placement"], *map(convert_bytes, sizes)])
    width = max(map(len, stage["memory"]))
    lines = [
        _table(("Unit", "Shape", "Placement", "Whole", "Largest shard"), rows, title),
        "Memory of the rank that needs most:",
        *(f"  {part.ljust(width)}  {convert_bytes(size)}" for part, size in stage["memory"].items()),
        f"One process has {convert_bytes(stage['one_process'])} of parameters, gradients and optimizer state in total.",
    ]
    if stage["collectives"]:
        lines.append(f"In a step each rank sends {convert_bytes(stage['bytes_sent'])}:")
    for op in stage["collectives"]:
        what = f"{op['kind'].replace('_', '-')} of {convert_bytes(op['bytes'])}"
        lines.append(f"  {op['count']} × {what} among {op['ranks']} ranks ({', '.join(op['axes'])})")
    return "\n".join(lines)


def _unit_rows(units: Sequence[Data]) -> list[tuple[str, Data]]:
    """Return labels and units in the order of the model; consecutive equal units under one parent are one row."""

    def kind(unit: Data) -> object:
        modules = unit["modules"]
        parent = modules[0].rpartition(".")[0] if len(modules) == 1 and modules[0] else modules
        return (
            parent,
            unit["is_tail"],
            [{**item, "name": _relative_name(unit, item)} for item in unit["parameters"]],
        )

    return [(_label(run), run[0]) for run in (list(run) for _, run in groupby(units, key=kind))]


def _label(units: Sequence[Data]) -> str:
    first = units[0]["modules"]
    if "" in first:
        return "everything else"
    if len(units) == 1:
        return " + ".join(first)
    last = units[-1]["modules"][0].rpartition(".")[2]
    return f"{first[0]} … {last} ({len(units)} units)"


def _relative_name(unit: Data, parameter: Data) -> str:
    """Return the name of a parameter, relative to its unit if that is one module."""
    name: str = parameter["name"]
    return name if len(unit["modules"]) > 1 else name.removeprefix(f"{unit['modules'][0]}.")


def fitting_data(proposals: Sequence[Proposal], *, memory: int) -> list[Data]:
    """Return all layouts in bytes, sorted by their traffic, and whether they fit ``memory`` bytes on each rank."""
    return [
        {
            "layout": _layout_data(proposal.layout),
            "memory": proposal.num_bytes,
            "sent_per_sequence": round(proposal.sent_per_sequence),
            "fits": proposal.num_bytes <= memory,
        }
        for proposal in proposals
    ]


def fitting_text(proposals: Sequence[Proposal], *, memory: int, wanted: str) -> str:
    """Return the table of the layouts that fit, sorted by their traffic; or the one that needs least memory.

    Args:
        proposals: The layouts.
        memory: Of a rank, in bytes.
        wanted: Model and ranks, in words.
    """
    if not proposals:
        return f"There is no layout for {wanted}."
    fitting = [proposal for proposal in proposals if proposal.num_bytes <= memory]
    if not fitting:
        nearest = min(proposals, key=lambda proposal: proposal.num_bytes)
        return (
            f"No layout fits {wanted}. Closest comes {_layout_text(_layout_data(nearest.layout))}, with "
            f"{convert_bytes(nearest.num_bytes)} on the rank that needs most."
        )
    rows = [
        [
            _layout_text(_layout_data(proposal.layout)),
            convert_bytes(proposal.num_bytes),
            convert_bytes(round(proposal.sent_per_sequence)),
        ]
        for proposal in fitting[:_MOST_PROPOSALS]
    ]
    table = _table(("Layout", "Memory", "Sent per sequence"), rows, wanted)
    more = len(fitting) - len(rows)
    return f"{table}\n{more} more fit, which send more." if more else table


def failed_text(failed: Mapping[MeshLayout, str]) -> str:
    """Return a line for each error, with the layouts that failed with it; an empty string without errors."""
    layouts: dict[str, list[str]] = {}
    for layout, error in failed.items():
        layouts.setdefault(error, []).append(_layout_text(_layout_data(layout)))
    return "".join(f"Layouts with {' or '.join(names)} failed. {error}\n" for error, names in layouts.items())


def _layout_data(layout: MeshLayout) -> Data:
    """Return the sizes of the axes that are used."""
    return {axis: size for axis, size in (*layout.sizes.items(), ("ep", layout.ep)) if size > 1}


def _layout_text(sizes: Data) -> str:
    axes = " × ".join(f"{axis} {size}" for axis, size in sizes.items() if axis != "ep") or "one rank"
    return f"{axes}, ep {sizes['ep']}" if "ep" in sizes else axes


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    width = max(len(row[0]) for row in rows)
    return create_ascii_table(headers, [[row[0].ljust(width), *row[1:]] for row in rows], title)
