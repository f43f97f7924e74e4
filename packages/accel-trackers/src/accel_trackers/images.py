"""Images as services take them: one by one, and tensors as arrays of bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_trackers.figures import is_figure, picture_of
from accel_trackers.values import is_tensor


def pictures(images: Any) -> list[Any]:
    """Return images one by one: of a list or tuple, of a batch of four dimensions, or the one that is given.

    Args:
        images: Tensors are ``CHW`` or ``NCHW``, of bytes or of numbers from 0 to 1, and become arrays of bytes,
            ``HWC``, or ``HW`` where there is one channel. Figures of matplotlib become pictures of Pillow. Arrays are
            ``HWC`` or ``NHWC`` and stay as they are, like everything else: pictures of Pillow, paths.
    """
    if isinstance(images, list | tuple):
        return [picture for image in images for picture in pictures(image)]
    if getattr(images, "ndim", 0) == 4:
        return [picture for image in images for picture in pictures(image)]
    if is_figure(images):
        return [picture_of(images)]
    return [_as_bytes(images) if is_tensor(images) else images]


def by_place(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return `pictures` by name; where a name has many, each is called ``name/0``, ``name/1``, …."""
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
