"""The parts of the pictures that `accel plan` draws, as SVG."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

WIDTH = 1000


def svg(drawing: Iterable[str], *, height: float) -> str:
    """Return a whole file around what is drawn."""
    size = f'width="{WIDTH}" height="{height}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
            f'<rect {size} fill="white"/>',
            *drawing,
            "</svg>\n",
        ]
    )


def box(left: float, top: float, width: float, colour: str, *, height: float) -> str:
    """Return a filled rectangle."""
    return (
        f'<rect x="{left:.1f}" y="{top}" width="{max(width, 0):.2f}" height="{height}" fill="{colour}" '
        'stroke="white" stroke-width="0.5"/>'
    )


def text(
    left: float, top: float, content: str, *, size: int = 13, anchor: str = "start", weight: str = "normal",
    colour: str = "black",
) -> str:  # fmt: skip
    """Return a line of text."""
    return (
        f'<text x="{left:.1f}" y="{top}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="{colour}">{escape(content)}</text>'
    )
