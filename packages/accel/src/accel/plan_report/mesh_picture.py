"""The ranks of a layout as a picture: one box for each rank, with its place on every axis."""

from __future__ import annotations

from accel.plan_report.drawing import box, svg, text
from accel.plan_report.needs import layout_text
from accel_state.mesh_layout import SHARD_AXES, MeshLayout

_MARGIN, _CELL, _ROW, _GAP, _LABEL = 24, 48, 42, 14, 260
_MOST_RANKS, _MOST_COLUMNS = 64, 14
_OUTER, _INNER = ("pp", "dp_replicate", "dp_shard"), ("cp", "sp", "tp")
_PART_AXES = (*SHARD_AXES, "tp")
_EXPLANATION = "Ranks of a row read the same batches; boxes of one colour hold the same part of a stage."


def mesh_svg(layout: MeshLayout) -> str:
    """Return the picture as the text of an SVG file."""
    drawing, bottom = mesh_drawing(layout, top=0)
    return svg(drawing, height=bottom)


def mesh_drawing(layout: MeshLayout, *, top: int) -> tuple[list[str], int]:
    """Return what to draw, from ``top`` on, and where it ends.

    A row holds ranks that read the same batches; boxes of one colour hold the same part of the parameters of their
    stage. Of more than 64 ranks the first are drawn.
    """
    in_row = layout.size(*_INNER)
    columns = min(in_row, _MOST_COLUMNS)
    num_drawn = min(layout.world_size, max(_MOST_RANKS // in_row, 1) * in_row, _MOST_RANKS)
    drawing = [
        text(_MARGIN, top + 34, f"{layout.world_size} ranks: {layout_text(layout)}", size=18, weight="bold"),
        text(_MARGIN, top + 56, _EXPLANATION, colour="#555"),
    ]
    top += 76
    for first in range(0, num_drawn, columns):
        if first:
            top += _gap_above(layout, first)
        drawing.append(text(_LABEL - 12, top + 24, _row_label(layout, first), anchor="end"))
        for rank in range(first, min(first + columns, num_drawn)):
            drawing += _rank(layout, rank, left=_LABEL + (rank - first) * _CELL, top=top)
        top += _ROW
    if num_drawn < layout.world_size:
        drawing.append(text(_LABEL, top + 18, f"… and {layout.world_size - num_drawn} more"))
        top += _ROW
    return drawing, top + 20


def _rank(layout: MeshLayout, rank: int, *, left: int, top: int) -> list[str]:
    place = layout.coordinate(rank)
    inner = " ".join(f"{axis} {place[axis]}" for axis in _INNER if layout.size(axis) > 1)
    part = layout.index(rank, *_PART_AXES)
    colour = f"hsl({360 * part // layout.size(*_PART_AXES)}, 55%, 82%)"
    middle = left + _CELL / 2
    return [
        box(left, top, _CELL - 4, colour, height=_ROW - 4),
        text(middle, top + 16, str(rank), anchor="middle", weight="bold"),
        text(middle, top + 31, inner, anchor="middle", size=10),
    ]


def _row_label(layout: MeshLayout, rank: int) -> str:
    place = layout.coordinate(rank)
    return ", ".join(f"{axis} {place[axis]}" for axis in _OUTER if layout.size(axis) > 1)


def _gap_above(layout: MeshLayout, first: int) -> int:
    """Return more space where an outer axis goes on: a stage begins, or a copy of the model."""
    before, here = layout.coordinate(first - 1), layout.coordinate(first)
    return _GAP * sum(before[axis] != here[axis] for axis in ("pp", "dp_replicate"))
