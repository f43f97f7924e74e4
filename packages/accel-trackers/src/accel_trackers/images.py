"""Images as services take them: one by one, and tensors as arrays of bytes."""

from __future__ import annotations

from typing import Any

from accel_trackers.values import is_tensor


def pictures(images: Any) -> list[Any]:
    """Return images one by one: of a list or tuple, of a batch of four dimensions, or the one that is given.

    Args:
        images: Tensors are ``CHW`` or ``NCHW``, of bytes or of numbers from 0 to 1, and become arrays of bytes,
            ``HWC``, or ``HW`` where there is one channel. Arrays are ``HWC`` or ``NHWC`` and stay as they are,
            like everything else: pictures of Pillow, figures, paths.
    """
    if isinstance(images, list | tuple):
        return [picture for image in images for picture in pictures(image)]
    if getattr(images, "ndim", 0) == 4:
        return [picture for image in images for picture in pictures(image)]
    return [_as_bytes(images) if is_tensor(images) else images]


def _as_bytes(image: Any) -> Any:
    image = image.detach().cpu()
    if image.is_floating_point():
        image = (image.float().clamp(0, 1) * 255).round()
    if image.ndim == 3:
        image = image.permute(1, 2, 0) if len(image) > 1 else image[0]
    return image.byte().contiguous().numpy()
