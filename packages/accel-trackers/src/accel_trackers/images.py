"""Images in the form that services accept: single images, tensors as uint8 arrays, figures as Pillow images."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from accel_trackers.values import in_containers, is_tensor


def pictures(images: Any) -> list[Any]:
    """Return the single images of a list, a tuple, a four-dimensional batch, or one image.

    Args:
        images: Tensors, on any device, are ``(C, H, W)`` or ``(N, C, H, W)``, uint8 or float from 0 to 1, and become
            uint8 arrays of shape ``(H, W, C)``, or ``(H, W)`` with one channel. Matplotlib figures become Pillow
            images. Arrays, ``(H, W, C)`` or ``(N, H, W, C)``, Pillow images and paths are passed through.
    """
    if isinstance(images, list | tuple) or getattr(images, "ndim", 0) == 4:
        return [picture for image in images for picture in pictures(image)]
    if is_figure(images):
        return [picture_of(images)]
    return [_as_bytes(images) if is_tensor(images) else images]


def by_place(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `pictures` by name; several under one name become ``name/0``, ``name/1``, …."""
    shown = {name: pictures(images) for name, images in values.items()}
    return {
        name if len(images) == 1 else f"{name}/{place}": image
        for name, images in shown.items()
        for place, image in enumerate(images)
    }


def _as_bytes(image: Any) -> Any:
    image = image.detach().cpu()
    if image.is_floating_point():
        image = (image.float().clamp(0, 1) * 255).round()
    if image.ndim == 3:
        image = image.permute(1, 2, 0) if len(image) > 1 else image[0]
    return image.byte().contiguous().numpy()


def is_figure(value: Any) -> bool:
    """Whether ``value`` is a matplotlib figure."""
    # Duck-typed: `isinstance` would import matplotlib also in scripts that draw nothing.
    return hasattr(value, "savefig") and hasattr(value, "canvas")


def picture_of(figure: Any) -> Any:
    """Render a figure in its current state as a Pillow image."""
    from PIL import Image  # matplotlib brings it

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    picture = Image.open(buffer)
    picture.load()
    return picture


def rendered(value: Any) -> Any:
    """Replace figures, which may be redrawn later, by images of their current state, also in dicts and lists."""
    return in_containers(lambda each: picture_of(each) if is_figure(each) else each, value)
