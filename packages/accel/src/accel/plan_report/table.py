"""A planned model as text and as data."""

from __future__ import annotations

from typing import Any

from accel.plan_report.rows import placement_of, title_of, unit_rows
from accel_backends.plans.memory import Bytes, PlannedModel
from accel_bigmodel.estimate.report import create_ascii_table
from accel_ops.byte_sizes import convert_bytes

HEADERS = ("Unit", "Shape", "Placement", "Whole", "Largest shard")


def as_text(planned: PlannedModel, *, name: str) -> str:
    """Return the table of units and parameters, followed by lines with the sums for a rank."""
    rows = _rows(planned)
    width = max(len(row[0]) for row in rows)
    table = create_ascii_table(
        HEADERS, [[row[0].ljust(width), *row[1:]] for row in rows], title_of(planned, f"`{name}`")
    )
    return "\n".join([table, *_sums(planned)])


def as_data(planned: PlannedModel, *, name: str) -> dict[str, Any]:
    """Return the same in bytes, every unit on its own."""
    return {
        "model": name,
        "num_replicas": planned.num_replicas,
        "num_shards": planned.num_shards,
        "num_sharing": planned.num_sharing,
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
    parts = ", ".join(
        f"{part} {convert_bytes(getattr(largest, part))}"
        for part in ("parameters", "gradients", "optimizer", "total")
    )
    alone = convert_bytes(planned.whole.total)
    lines = [f"The largest rank, float32, AdamW: {parts}; one process alone {alone}"]
    if smallest != largest:
        lines.append(f"The smallest rank: total {convert_bytes(smallest.total)}")
    if planned.buffer_bytes:
        lines.append(f"Buffers on every rank: {convert_bytes(planned.buffer_bytes)}")
    lines.append(
        f"Parameters that are whole at a time, at most: {convert_bytes(planned.gathered_bytes)} in float32"
    )
    return lines


def _bytes(held: Bytes) -> dict[str, int]:
    return {
        "parameters": held.parameters,
        "gradients": held.gradients,
        "optimizer": held.optimizer,
        "total": held.total,
    }
