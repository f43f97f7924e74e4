"""The output of ``accel plan``: a plan, or the layouts that fit, as data and, made from that, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from accel_backends.plans.estimate import StageEstimate
from accel_backends.plans.fitting import Proposal
from accel_backends.plans.memory import PlannedParameter
from accel_bigmodel.estimate.command import create_ascii_table
from accel_ops.byte_sizes import convert_bytes
from accel_state.mesh_layout import MeshLayout

Data = dict[str, Any]

_MOST_PROPOSALS = 10


def plan_data(stages: Sequence[StageEstimate], *, name: str) -> Data:
    """Return a plan in bytes, with every unit; a list of its stages if there are several."""
    data = [_stage_data(stage, name=name) for stage in stages]
    return data[0] if len(data) == 1 else {"model": name, "stages": data}


def _stage_data(stage: StageEstimate, *, name: str) -> Data:
    planned = stage.planned
    sizes = {"largest_rank": planned.largest, "smallest_rank": planned.smallest, "one_process": planned.whole}
    return {
        "model": name,
        **{key: getattr(planned, key) for key in ("num_replicas", "num_shards", "num_sharing", "num_expert_ranks")},
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
        **{key: {**asdict(size), "total": size.total} for key, size in sizes.items()},
        "buffer_bytes": planned.buffer_bytes,
        "gathered_bytes": planned.gathered_bytes,
        "memory": {**stage.memory, "total": stage.total},
        "bytes_sent": round(stage.bytes_sent),
        "collectives": [
            {"kind": one.kind, "axes": list(one.axes), "ranks": one.num_ranks, "bytes": one.num_bytes, "count": count}
            for one, count in sorted(stage.collectives.items())
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
    name = data["model"]
    if "stages" not in data:
        return _stage_text(data, title=f"`{name}`")
    return "\n".join(
        _stage_text(stage, title=f"`stage {number} of {name}`") for number, stage in enumerate(data["stages"])
    )


def _stage_text(stage: Data, *, title: str) -> str:
    rows = []
    for label, unit in _unit_rows(stage["units"]):
        sizes = [sum(one[size] for one in unit["parameters"]) for size in ("bytes", "largest_shard_bytes")]
        rows.append([label, "", "", *map(convert_bytes, sizes)])
        for one in unit["parameters"]:
            name = f"  {_relative_name(unit, one)}" + ("" if one["is_trainable"] else " (frozen)")
            shape = "×".join(map(str, one["shape"])) or "scalar"
            sizes = [one["bytes"], one["largest_shard_bytes"]]
            rows.append([name, shape, one["placement"], *map(convert_bytes, sizes)])
    largest, smallest, alone = (
        convert_bytes(stage[which]["total"]) for which in ("largest_rank", "smallest_rank", "one_process")
    )
    lines = [
        _table(("Unit", "Shape", "Placement", "Whole", "Largest shard"), rows, _title(stage, title)),
        f"Parameters, gradients and AdamW's state in float32: {largest} on the largest rank; one process alone {alone}",
    ]
    if stage["smallest_rank"] != stage["largest_rank"]:
        lines.append(f"The smallest rank: {smallest}")
    width = max(map(len, stage["memory"]))
    lines.append("Memory of the rank that needs most:")
    lines += [f"  {part.ljust(width)}  {convert_bytes(size)}" for part, size in stage["memory"].items()]
    if stage["collectives"]:
        lines.append(f"In a step each rank sends {convert_bytes(stage['bytes_sent'])}:")
    for one in stage["collectives"]:
        what = f"{one['kind'].replace('_', '-')} of {convert_bytes(one['bytes'])}"
        lines.append(f"  {one['count']} × {what} among {one['ranks']} ranks ({', '.join(one['axes'])})")
    return "\n".join(lines)


def _unit_rows(units: Sequence[Data]) -> list[tuple[str, Data]]:
    """Return labels and units in the order of the model; consecutive equal units under one parent are one row."""

    def kind(unit: Data) -> object:
        modules = unit["modules"]
        parent = modules[0].rpartition(".")[0] if len(modules) == 1 and modules[0] else modules
        return (
            parent,
            unit["is_tail"],
            [{**one, "name": _relative_name(unit, one)} for one in unit["parameters"]],
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


def _title(stage: Data, name: str) -> str:
    replicas = f"{stage['num_replicas']} copies of {name}, each" if stage["num_replicas"] > 1 else name
    shards, sharing, experts = stage["num_shards"], stage["num_sharing"], stage["num_expert_ranks"]
    ranks = f"{shards} {'rank' if shards == 1 else 'ranks'}"
    if sharing > 1:
        ranks = f"{shards} × {sharing} ranks, layers shared by {sharing}"
    return f"{replicas} on {ranks}" + (f", experts spread over {experts}" if experts > 1 else "")


def fitting_data(proposals: Sequence[Proposal], *, memory: int) -> list[Data]:
    """Return all layouts in bytes, sorted by their traffic, and whether they fit ``memory`` bytes on each rank."""
    return [
        {
            "layout": {axis: size for axis, size in one.layout.sizes.items() if size > 1},
            "memory": one.num_bytes,
            "sent_per_sequence": round(one.sent_per_sequence),
            "fits": one.num_bytes <= memory,
        }
        for one in proposals
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
    fitting = [one for one in proposals if one.num_bytes <= memory]
    if not fitting:
        nearest = min(proposals, key=lambda one: one.num_bytes)
        return (
            f"No layout fits {wanted}. Closest comes {_layout_text(nearest.layout)}, with "
            f"{convert_bytes(nearest.num_bytes)} on the rank that needs most."
        )
    rows = [
        [_layout_text(one.layout), convert_bytes(one.num_bytes), convert_bytes(round(one.sent_per_sequence))]
        for one in fitting[:_MOST_PROPOSALS]
    ]
    table = _table(("Layout", "Memory", "Sent per sequence"), rows, wanted)
    more = len(fitting) - len(rows)
    return f"{table}\n{more} more fit, which send more." if more else table


def failed_text(failed: Mapping[MeshLayout, str]) -> str:
    """Return a line for each error, with the layouts that failed with it; an empty string without errors."""
    layouts: dict[str, list[str]] = {}
    for layout, error in failed.items():
        layouts.setdefault(error, []).append(_layout_text(layout))
    return "".join(f"Layouts with {' or '.join(names)} failed. {error}\n" for error, names in layouts.items())


def _layout_text(layout: MeshLayout) -> str:
    sizes = [f"{axis} {size}" for axis, size in layout.sizes.items() if size > 1]
    return " × ".join(sizes) + (f", ep {layout.ep}" if layout.ep > 1 else "") if sizes else "one rank"


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]], title: str) -> str:
    width = max(len(row[0]) for row in rows)
    return create_ascii_table(headers, [[row[0].ljust(width), *row[1:]] for row in rows], title)
