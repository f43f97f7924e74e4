from __future__ import annotations

import torch

from accel_ops import TENSOR_INT_TO_DTYPE, TENSOR_TYPE_TO_INT


def test_the_numbers_are_those_that_others_know():
    assert TENSOR_TYPE_TO_INT[torch.float32] == 1
    assert TENSOR_TYPE_TO_INT[torch.bool] == 10
    assert [TENSOR_TYPE_TO_INT[TENSOR_INT_TO_DTYPE[number]] for number in range(1, 11)] == list(range(1, 11))
