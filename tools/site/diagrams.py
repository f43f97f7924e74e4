"""The drawings of the guides, from lists of boxes: ``python -m tools.site.diagrams`` writes them to ``docs/images``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tools.workspace import ROOT

IMAGES = ROOT / "docs" / "images"
UNIT_PX = 10
"""Boxes are placed on a grid of so many pixels."""
HEAD = (
    '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="8" refY="4" orient="auto">'
    '<path d="M0 0L9 4L0 8z" fill="#456"/></marker></defs>'
)
COLOURS = {"plain": "#eef2f7", "accel": "#d6e4f5", "yours": "#fdebd0", "end": "#dff0d8"}


@dataclass(frozen=True, slots=True)
class Box:
    """A labelled rectangle, in units of the grid."""

    left: int
    top: int
    width: int
    height: int
    label: str
    kind: str = "plain"


@dataclass(frozen=True, slots=True)
class Arrow:
    """A line with a head, in units of the grid."""

    start: tuple[int, int]
    end: tuple[int, int]
    label: str = ""


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes and arrows on a sheet, in units of the grid."""

    title: str
    width: int
    height: int
    boxes: Sequence[Box]
    arrows: Sequence[Arrow] = ()


def as_svg(drawing: Drawing) -> str:
    """Return the drawing as SVG that reads on a white page."""
    width, height = drawing.width * UNIT_PX, drawing.height * UNIT_PX
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" font-family="sans-serif" text-anchor="middle">',
        f"<title>{escape(drawing.title)}</title>",
        HEAD,
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for box in drawing.boxes:
        left, top, wide, high = (value * UNIT_PX for value in (box.left, box.top, box.width, box.height))
        parts.append(
            f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" rx="5" fill="{COLOURS[box.kind]}"'
            ' stroke="#456"/>'
        )
        lines = box.label.split("\n")
        for number, line in enumerate(lines):
            middle = top + high / 2 + 16 * (number - (len(lines) - 1) / 2) + 4.5
            parts.append(
                f'<text x="{left + wide / 2:g}" y="{middle:g}" fill="#111" font-size="13">{escape(line)}</text>'
            )
    for arrow in drawing.arrows:
        (x1, y1), (x2, y2) = (tuple(UNIT_PX * value for value in point) for point in (arrow.start, arrow.end))
        parts.append(
            f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="#456" stroke-width="1.5" marker-end="url(#head)"/>'
        )
        if arrow.label:
            where = f'x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 - 6:g}"'
            parts.append(f'<text {where} fill="#345" font-size="12">{escape(arrow.label)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _accumulation() -> Drawing:
    batches = [Box(2 + 13 * number, 5, 11, 4, "2 rows: backward\nloss ÷ 4", "yours") for number in range(4)]
    return Drawing(
        "Four batches of two rows, or one of eight: the same step",
        72,
        19,
        [
            *batches,
            Box(57, 5, 13, 4, "average, step", "accel"),
            Box(2, 12, 50, 4, "8 rows: backward", "yours"),
            Box(57, 12, 13, 4, "average, step", "accel"),
        ],
        [Arrow((52, 7), (57, 7)), Arrow((52, 14), (57, 14))],
    )


def _inside() -> Drawing:
    return Drawing(
        "From the command to a training step",
        84,
        37,
        [
            Box(2, 2, 18, 5, "flags, variables,\nconfig file"),
            Box(27, 2, 18, 5, "accel launch:\na plan", "accel"),
            Box(52, 2, 30, 5, "one process for each rank\n(variables say which)", "accel"),
            Box(52, 11, 30, 5, "Accelerator(): strategy,\nprecision, layout", "accel"),
            Box(27, 11, 18, 5, "prepare", "accel"),
            Box(2, 20, 14, 6, "loader: this\nrank's rows", "accel"),
            Box(19, 20, 12, 6, "your model", "yours"),
            Box(34, 20, 13, 6, "backward:\naverage", "accel"),
            Box(50, 20, 14, 6, "clip, step,\nschedule", "accel"),
            Box(67, 20, 15, 6, "log, save", "end"),
            Box(34, 31, 30, 4, "the other ranks"),
        ],
        [
            Arrow((20, 4), (27, 4)),
            Arrow((45, 4), (52, 4)),
            Arrow((67, 7), (67, 11)),
            Arrow((52, 13), (45, 13)),
            Arrow((36, 16), (9, 20)),
            Arrow((16, 23), (19, 23)),
            Arrow((31, 23), (34, 23)),
            Arrow((47, 23), (50, 23)),
            Arrow((64, 23), (67, 23)),
            Arrow((40, 26), (40, 31)),
            Arrow((43, 31), (43, 26)),
        ],
    )


DRAWINGS = {"accumulation": _accumulation, "inside": _inside}


def write(folder: Path) -> None:
    """Write every drawing into ``folder``."""
    for name, draw in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(as_svg(draw()), encoding="utf-8")


if __name__ == "__main__":
    write(IMAGES)
