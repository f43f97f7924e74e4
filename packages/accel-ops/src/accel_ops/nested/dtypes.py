"""Numbers for dtypes on the wire."""

from __future__ import annotations

import torch

TENSOR_TYPE_TO_INT: dict[torch.dtype, int] = {
    torch.float32: 1,
    torch.float64: 2,
    torch.float16: 3,
    torch.bfloat16: 4,
    torch.uint8: 5,
    torch.int8: 6,
    torch.int16: 7,
    torch.int32: 8,
    torch.int64: 9,
    torch.bool: 10,
}

TENSOR_INT_TO_DTYPE: dict[int, torch.dtype] = {number: dtype for dtype, number in TENSOR_TYPE_TO_INT.items()}
