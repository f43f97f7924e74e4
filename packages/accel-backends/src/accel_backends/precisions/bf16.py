"""bfloat16 autocast: the range of fp32 with fewer digits, so gradients need no scaling."""

from __future__ import annotations

from typing import ClassVar

import torch

from accel_backends.precisions.autocast import AutocastPrecision


class BF16Precision(AutocastPrecision):
    """The precision `bf16`."""

    name: ClassVar[str] = "bf16"
    compute_dtype: ClassVar[torch.dtype] = torch.bfloat16
