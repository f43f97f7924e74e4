"""Images in the form that services accept: single images, and tensors as uint8 arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_trackers.figures import is_figure, picture_of
from accel_trackers.values import is_tensor


def pictures(images: Any) -> list[Any]:
    """Return the single images of a list, a tuple, a four-dimensional batch, or one image.

    Args:
        images: Tensors, on any device, are ``(C, H, W)`` or ``(N, C, H, W)``, uint8 or float from 0 to 1, and become
            uint8 arrays of shape ``(H, W, C)``, or ``(H, W)`` with one channel. Matplotlib figures become Pillow
            images. Arrays, ``(H, W, C)`` or ``(N, H, W, C)``, Pillow images and paths are passed through.
    """
    if isinstance(images, list | tuple):
        return [picture for image in images for picture in pictures(image)]
    if getattr(images, "ndim", 0) == 4:
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
