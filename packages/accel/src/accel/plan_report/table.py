"""A planned model as text and as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel.plan_report.needs import needs_data, needs_lines
from accel.plan_report.rows import placement_of, title_of, unit_rows
from accel_backends.plans.estimate import StageEstimate
from accel_backends.plans.memory import Bytes, PlannedModel
from accel_bigmodel.estimate.command import create_ascii_table
from accel_ops.byte_sizes import convert_bytes

HEADERS = ("Unit", "Shape", "Placement", "Whole", "Largest shard")


def as_text(stages: Sequence[StageEstimate], *, name: str) -> str:
    """Return the table of units and parameters of each stage, followed by lines with what a rank needs."""
    return "\n".join(
        _stage_text(stage, name=name if len(stages) == 1 else f"stage {number} of {name}")
        for number, stage in enumerate(stages)
    )


def _stage_text(stage: StageEstimate, *, name: str) -> str:
    planned = stage.planned
    rows = _rows(planned)
    width = max(len(row[0]) for row in rows)
    table = create_ascii_table(
        HEADERS, [[row[0].ljust(width), *row[1:]] for row in rows], title_of(planned, f"`{name}`")
    )
    return "\n".join([table, *_sums(planned), *needs_lines(stage)])


def as_data(stages: Sequence[StageEstimate], *, name: str) -> dict[str, Any]:
    """Return the same in bytes, every unit on its own; of several stages, a list."""
    if len(stages) == 1:
        return _stage_data(stages[0], name=name)
    return {"model": name, "stages": [_stage_data(stage, name=name) for stage in stages]}


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
        "largest_rank": _bytes(planned.largest),
        "smallest_rank": _bytes(planned.smallest),
        "one_process": _bytes(planned.whole),
        "buffer_bytes": planned.buffer_bytes,
        "gathered_bytes": planned.gathered_bytes,
        **needs_data(stage),
    }


def _rows(planned: PlannedModel) -> list[list[str]]:
    rows = []
    for row in unit_rows(planned):
        unit = row.unit
        whole, largest = unit.whole.parameters, unit.bytes_on(0).parameters
        rows.append([row.label, "", "", convert_bytes(whole), convert_bytes(largest)])
        for name, parameter in zip(row.names(), unit.parameters, strict=True):
            rows.append(
                [
                    f"  {name}" + ("" if parameter.is_trainable else " (frozen)"),
                    "×".join(map(str, parameter.shape)) or "scalar",
                    placement_of(parameter, num_replicas=planned.num_replicas),
                    convert_bytes(parameter.whole.parameters),
                    convert_bytes(parameter.bytes_on(0).parameters),
                ]
            )
    return rows


def _sums(planned: PlannedModel) -> list[str]:
    largest, smallest = planned.largest, planned.smallest
    lines = [
        (
            f"Parameters, gradients and AdamW's state in float32: {convert_bytes(largest.total)} on the largest rank; "
            f"one process alone {convert_bytes(planned.whole.total)}"
        )
    ]
    if smallest != largest:
        lines.append(f"The smallest rank: {convert_bytes(smallest.total)}")
    return lines


def _bytes(held: Bytes) -> dict[str, int]:
    return {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "total": held.total,
    }
