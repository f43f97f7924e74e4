from __future__ import annotations

import pytest
import torch

from accel_backends import AutocastKwargs, get_mixed_precision_context_manager
from accel_state import AcceleratorState


def product_dtype():
    return (torch.ones(2, 2) @ torch.ones(2, 2)).dtype


@pytest.fixture
def state(fresh_state):
    return AcceleratorState(mixed_precision="bf16", cpu=True, _from_accelerator=True)


def test_the_context_casts_as_the_state_specifies(state):
    with get_mixed_precision_context_manager(native_amp=True):
        assert product_dtype() is torch.bfloat16


def test_the_context_casts_as_the_handler_specifies(state):
    with get_mixed_precision_context_manager(True, AutocastKwargs(enabled=False)):
        assert product_dtype() is torch.float32


def test_without_native_amp_nothing_is_cast(state):
    with get_mixed_precision_context_manager():
        assert product_dtype() is torch.float32
