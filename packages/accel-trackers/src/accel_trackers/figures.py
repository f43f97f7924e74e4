"""Matplotlib figures as Pillow images."""

from __future__ import annotations

import io
from typing import Any


def is_figure(value: Any) -> bool:
    """Whether ``value`` is a matplotlib figure."""
    # Duck-typed: `isinstance` would import matplotlib also in scripts that draw nothing.
    return hasattr(value, "savefig") and hasattr(value, "canvas")


def as_picture(value: Any) -> Any:
    """Return a figure or Pillow image as a Pillow image; ``None`` for other values."""
    if is_figure(value):
        return picture_of(value)
    return value if hasattr(value, "getpixel") else None


def picture_of(figure: Any) -> Any:
    """Render a figure in its current state as a Pillow image."""
    from PIL import Image  # matplotlib brings it

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    picture = Image.open(buffer)
    picture.load()
    return picture
