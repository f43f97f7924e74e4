from __future__ import annotations

import pytest
import torch

from accel_bigmodel import dtype_byte_size
from accel_bigmodel.dtypes import as_torch_dtype
from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError, UnknownNameError


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 4), (torch.bfloat16, 2), (torch.int64, 8), (torch.bool, 0.125), (torch.float8_e4m3fn, 1),
        (torch.complex64, 8), (CustomDtype.FP8, 1), (CustomDtype.INT4, 0.5),
        (CustomDtype.INT2, 0.25), ("half", 2),
    ],
)  # fmt: skip
def test_bytes_per_number(dtype, size):
    assert dtype_byte_size(dtype) == size


def test_an_unknown_dtype_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="Unknown dtype `float23`. .*Did you mean `float32`"):
        dtype_byte_size("float23")
    with pytest.raises(UnknownNameError, match="Unknown dtype `nn`"):
        dtype_byte_size("nn")


def test_formats_that_only_have_a_size_are_no_torch_dtypes():
    assert as_torch_dtype("torch.float16") is torch.float16
    with pytest.raises(ConfigError, match="`int4` has a size but no torch dtype"):
        as_torch_dtype("int4")
