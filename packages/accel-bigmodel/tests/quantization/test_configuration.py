from __future__ import annotations

import pytest
import torch

from accel_bigmodel import BnbQuantizationConfig
from accel_state.enums import CustomDtype
from accel_state.errors import ConfigError


def test_names_become_dtypes():
    config = BnbQuantizationConfig(load_in_4bit=True, bnb_4bit_compute_dtype="bf16", torch_dtype="float16")
    assert (config.bnb_4bit_compute_dtype, config.torch_dtype) == (torch.bfloat16, torch.float16)
    assert config.target_dtype == CustomDtype.INT4
    assert BnbQuantizationConfig(load_in_8bit=True).target_dtype == torch.int8


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Exactly one of"),
        ({"load_in_8bit": True, "load_in_4bit": True}, "Exactly one of"),
        ({"load_in_8bit": 1}, "`load_in_8bit` must be True or False"),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf5"}, "must be `fp4` or `nf4`, not `nf5`"),
        ({"load_in_8bit": True, "skip_modules": "head"}, "`skip_modules` must be a list"),
    ],
)
def test_contradictions_are_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        BnbQuantizationConfig(**given)
