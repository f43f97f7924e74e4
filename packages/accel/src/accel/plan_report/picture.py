"""A planned model as a picture: each unit cut into its shards, and what a rank holds beside one process alone."""

from __future__ import annotations

from itertools import product

from accel.plan_report.drawing import box, svg, text
from accel.plan_report.mesh_picture import mesh_drawing
from accel.plan_report.rows import UnitRow, title_of, unit_rows
from accel_backends.plans.memory import Bytes, PlannedModel
from accel_ops.byte_sizes import convert_bytes
from accel_state.mesh_layout import MeshLayout

_MARGIN, _ROW, _BAR = 24, 30, 18
_LABEL, _BARS = 300, 400  # where the bars begin, and how long the longest is
_MOST_CELLS = 64
_FIRST, _EVEN, _ODD = "#1f5fa8", "#b9d3ee", "#d8e7f6"
_PARTS = (("parameters", "#1f5fa8"), ("gradients", "#e08e2b"), ("optimizer", "#7d9c4c"))


def as_svg(planned: PlannedModel, *, name: str, layout: MeshLayout | None = None) -> str:
    """Return the picture as the text of an SVG file; with the ranks of a ``layout`` that has several axes below."""
    rows = unit_rows(planned)
    longest = max(row.unit.whole.parameters for row in rows)
    drawing = [
        text(_MARGIN, 34, title_of(planned, name), size=18, weight="bold"),
        text(_MARGIN, 56, "Each bar is a unit; its dark part is what the first rank stores.", colour="#555"),
    ]
    top = 76
    for row in rows:
        drawing += _unit(row, planned, top=top, scale=_BARS / longest if longest else 0)
        top += _ROW
    top += 24
    drawing.append(
        text(_MARGIN, top, "Parameters, gradients and AdamW's state in float32", size=15, weight="bold")
    )
    top += 14
    for label, held in (("one process alone", planned.whole), ("largest rank", planned.bytes_on(0))):
        drawing += _held(
            label, held, top=top, scale=_BARS / planned.whole.total if planned.whole.total else 0
        )
        top += _ROW
    drawing += _legend(top + 18)
    top += 44
    if layout is not None and sum(size > 1 for size in layout.sizes.values()) > 1:
        ranks, top = mesh_drawing(layout, top=top)
        drawing += ranks
    return svg(drawing, height=top)


def _unit(row: UnitRow, planned: PlannedModel, *, top: int, scale: float) -> list[str]:
    unit = row.unit
    whole, first = unit.whole.parameters, unit.bytes_on(0).parameters
    drawing = [text(_LABEL - 12, top + 14, _shortened(row.label), anchor="end")]
    if planned.num_shards * planned.num_sharing <= _MOST_CELLS:
        ranks = product(range(planned.num_shards), range(planned.num_sharing))
        cells = [unit.bytes_on(shard, sharer).parameters for shard, sharer in ranks]
    else:
        cells = [first, whole - first]
    left = float(_LABEL)
    for number, size in enumerate(cells):
        width = min(
            size * scale, _LABEL + whole * scale - left
        )  # what is not cut is on every rank: drawn once
        drawing.append(
            box(left, top, width, _FIRST if number == 0 else _EVEN if number % 2 else _ODD, height=_BAR)
        )
        left += width
    kept = ", kept gathered" if unit.is_tail else ""
    drawing.append(
        text(left + 8, top + 14, f"{convert_bytes(whole)} → {convert_bytes(first)}{kept}", colour="#333")
    )
    return drawing


def _held(label: str, held: Bytes, *, top: int, scale: float) -> list[str]:
    drawing = [text(_LABEL - 12, top + 14, label, anchor="end")]
    left = float(_LABEL)
    for part, colour in _PARTS:
        width = getattr(held, part) * scale
        drawing.append(box(left, top, width, colour, height=_BAR))
        left += width
    return [*drawing, text(left + 8, top + 14, convert_bytes(held.total), colour="#333")]


def _legend(top: int) -> list[str]:
    drawing = []
    left = _LABEL
    for part, colour in _PARTS:
        drawing += [box(left, top - 10, 12, colour, height=12), text(left + 18, top, part)]
        left += 120
    return drawing


def _shortened(label: str, *, most: int = 40) -> str:
    return label if len(label) <= most else f"…{label[len(label) - most + 1 :]}"
