"""Figures of matplotlib as pictures of Pillow."""

from __future__ import annotations

import io
from typing import Any


def is_figure(value: Any) -> bool:
    """Whether ``value`` is a figure of matplotlib."""
    # By what it can do: asking matplotlib would import it for people who draw nothing.
    return hasattr(value, "savefig") and hasattr(value, "canvas")


def as_picture(value: Any) -> Any:
    """Return a figure, or a picture of Pillow, as a picture; ``None`` for all else."""
    if is_figure(value):
        return picture_of(value)
    return value if hasattr(value, "getpixel") else None


def picture_of(figure: Any) -> Any:
    """Return a figure as a picture of Pillow, drawn as it is now."""
    from PIL import Image  # matplotlib brings it

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    picture = Image.open(buffer)
    picture.load()
    return picture
