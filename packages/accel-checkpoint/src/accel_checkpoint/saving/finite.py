"""Find values that are not finite, which no training recovers from."""

from __future__ import annotations

import math

import torch

from accel_checkpoint.saving.snapshot import is_plain


@torch.no_grad()
def is_finite(tensor: torch.Tensor) -> bool:
    """Whether a tensor has neither NaN nor infinity; negative infinity is allowed, since masks consist of it.

    Waits for the device. Tensors other than plain ones are not examined.
    """
    if not is_plain(tensor) or not tensor.numel():
        return True
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if not tensor.is_floating_point():
        return True
    if tensor.dtype == torch.float4_e2m1fn_x2:
        return True  # two numbers in a byte, neither of which can be NaN or infinity
    if tensor.dtype.itemsize == 1:  # torch has no maximum of these
        tensor = tensor.to(torch.bfloat16)
    largest = tensor.amax().item()
    return not math.isnan(largest) and largest < math.inf
