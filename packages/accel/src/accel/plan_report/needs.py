"""What the ranks of a plan need for a step, as text and as data: memory, and what they send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from accel_backends.plans.communication import Collective
from accel_backends.plans.estimate import StageEstimate
from accel_backends.plans.fitting import Proposal
from accel_bigmodel.estimate.command import create_ascii_table
from accel_ops.byte_sizes import convert_bytes
from accel_state.mesh_layout import MeshLayout

_MOST_PROPOSALS = 10


def needs_lines(needed: StageEstimate) -> list[str]:
    """Return a line for each part of the memory of the rank that holds most, and for each collective of a step."""
    parts = {**needed.memory, "total": needed.total}
    width = max(map(len, parts))
    lines = ["Memory of the rank that needs most:"]
    lines += [f"  {part.ljust(width)}  {convert_bytes(size)}" for part, size in parts.items()]
    if needed.collectives:
        lines.append(f"In a step each rank sends {convert_bytes(round(needed.bytes_sent))}:")
        lines += [_told(one, count) for one, count in sorted(needed.collectives.items())]
    return lines


def needs_data(needed: StageEstimate) -> dict[str, Any]:
    """Return the same in bytes."""
    return {
        "memory": {**needed.memory, "total": needed.total},
        "bytes_sent": round(needed.bytes_sent),
        "collectives": [
            {"kind": one.kind, "axes": list(one.axes), "ranks": one.num_ranks, "bytes": one.num_bytes, "count": count}
            for one, count in sorted(needed.collectives.items())
        ],
    }  # fmt: skip


def fitting_text(found: Sequence[Proposal], *, memory: int, wanted: str) -> str:
    """Return the table of the layouts that fit, those that send least first; or what comes closest.

    Args:
        found: The layouts.
        memory: Of a rank, in bytes.
        wanted: Model and ranks, in words.
    """
    fitting = [one for one in found if one.num_bytes <= memory]
    if not found:
        return f"There is no layout for {wanted}."
    if not fitting:
        nearest = min(found, key=lambda one: one.num_bytes)
        return (
            f"No layout fits {wanted}. Closest comes {layout_text(nearest.layout)}, with "
            f"{convert_bytes(nearest.num_bytes)} on the rank that needs most."
        )
    rows = [
        [layout_text(one.layout), convert_bytes(one.num_bytes), convert_bytes(round(one.sent_per_sequence))]
        for one in fitting[:_MOST_PROPOSALS]
    ]
    width = max(len(row[0]) for row in rows)
    table = create_ascii_table(
        ["Layout", "Memory", "Sent per sequence"], [[row[0].ljust(width), *row[1:]] for row in rows], wanted
    )
    more = len(fitting) - len(rows)
    return f"{table}\n{more} more fit, which send more." if more else table


def failed_text(failed: Mapping[MeshLayout, str]) -> str:
    """Return a line for each error, with the layouts that failed with it; nothing if none did."""
    layouts: dict[str, list[str]] = {}
    for layout, error in failed.items():
        layouts.setdefault(error, []).append(layout_text(layout))
    return "".join(f"Layouts with {' or '.join(found)} failed. {error}\n" for error, found in layouts.items())


def fitting_data(found: Sequence[Proposal], *, memory: int) -> list[dict[str, Any]]:
    """Return all layouts in bytes, those that send least first."""
    return [
        {
            "layout": {axis: size for axis, size in one.layout.sizes.items() if size > 1},
            "memory": one.num_bytes,
            "sent_per_sequence": round(one.sent_per_sequence),
            "fits": one.num_bytes <= memory,
        }
        for one in found
    ]


def layout_text(layout: MeshLayout) -> str:
    """Return the axes of a layout that are on."""
    sizes = [f"{axis} {size}" for axis, size in layout.sizes.items() if size > 1]
    return " × ".join(sizes) + (f", ep {layout.ep}" if layout.ep > 1 else "") if sizes else "one rank"


def _told(one: Collective, count: int) -> str:
    among = f"among {one.num_ranks} ranks ({', '.join(one.axes)})"
    return f"  {count} × {one.kind.replace('_', '-')} of {convert_bytes(one.num_bytes)} {among}"
