"""The output of ``accel plan``: a plan, or the layouts that fit, as data and, made from that, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from accel.planning.fitting import Proposal, Search
from accel.planning.step import StageReport
from accel_bigmodel.estimate.command import create_ascii_table
from accel_ops.byte_sizes import convert_bytes
from accel_state.mesh_layout import MeshLayout

Data = dict[str, Any]


def plan_data(stages: Sequence[StageReport], *, name: str, layout: MeshLayout) -> Data:
    """Return a plan in bytes, with every unit; a list of its stages if there are several."""
    data = [_stage_data(stage) for stage in stages]
    head = {"model": name, "layout": _layout_data(layout)}
    return {**head, **data[0]} if len(data) == 1 else {**head, "stages": data}


def _stage_data(stage: StageReport) -> Data:
    parameters = [one for unit in stage.units for one in unit.parameters]
    trained = sum(one.num_bytes for one in parameters if one.is_trainable)
    return {
        "units": [
            {
                "modules": list(unit.modules),
                "is_tail": unit.is_tail,
                "parameters": [
                    {
                        "name": parameter.name,
                        "shape": list(parameter.shape),
                        "placement": parameter.placement,
                        "is_trainable": parameter.is_trainable,
                        "bytes": parameter.num_bytes,
                        "largest_shard_bytes": parameter.num_local,
                    }
                    for parameter in unit.parameters
                ],
            }
            for unit in stage.units
        ],
        # A gradient and two averages of AdamW for each parameter that is trained.
        "one_process": sum(one.num_bytes for one in parameters) + 3 * trained,
        "memory": {**stage.memory, "total": stage.total},
        "bytes_sent": round(sum(stage.moved.values())),
        "moved": {axes: round(size) for axes, size in stage.moved.items()},
        "collectives": [
            {"kind": op.kind, "axes": list(op.axes), "ranks": op.num_ranks, "bytes": op.num_bytes, "count": count}
            for op, count in sorted(stage.collectives.items())
        ],
    }  # fmt: skip


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
        moved = _moved_text(stage["moved"])
        lines.append(f"In a step each rank sends {convert_bytes(stage['bytes_sent'])} ({moved}):")
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
    """Return the layouts that were prepared in bytes, sorted by their traffic, and whether they fit ``memory`` bytes."""
    return [
        {
            "layout": _layout_data(proposal.layout),
            "memory": proposal.num_bytes,
            "sent_per_sequence": round(proposal.sent_per_sequence),
            "moved_per_sequence": {axes: round(size) for axes, size in proposal.moved.items()},
            "fits": proposal.num_bytes <= memory,
        }
        for proposal in proposals
    ]


def fitting_text(found: Search, *, memory: int, wanted: str) -> str:
    """Return the table of the layouts that fit, sorted by their traffic; or the one that needs least memory.

    Args:
        found: The layouts.
        memory: Of a rank, in bytes.
        wanted: Model and ranks, in words.
    """
    if not found.proposals:
        return f"There is no layout for {wanted}."
    fitting = [proposal for proposal in found.proposals if proposal.num_bytes <= memory]
    if not fitting:
        nearest = min(found.proposals, key=lambda proposal: proposal.num_bytes)
        return (
            f"No layout fits {wanted}. Closest comes {_layout_text(_layout_data(nearest.layout))}, with "
            f"{convert_bytes(nearest.num_bytes)} on the rank that needs most."
        )
    rows = [
        [
            _layout_text(_layout_data(proposal.layout)),
            convert_bytes(proposal.num_bytes),
            convert_bytes(round(proposal.sent_per_sequence)),
            _moved_text(proposal.moved),
        ]
        for proposal in fitting
    ]
    lines = [_table(("Layout", "Memory", "Sent per sequence", "Along"), rows, wanted)]
    lines += [
        f"{_layout_text(_layout_data(one.layout))} does not fit: it needs {convert_bytes(one.num_bytes)}."
        for one in found.proposals
        if one.num_bytes > memory
    ]
    if found.num_skipped:
        lines.append(f"{found.num_skipped} further layouts need more memory by arithmetic alone.")
    return "\n".join(lines)


def _moved_text(moved: Mapping[str, float]) -> str:
    return ", ".join(f"{axes} {convert_bytes(round(size))}" for axes, size in moved.items())


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
