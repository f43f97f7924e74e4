"""Settings of gradient accumulation."""

import pytest

from accel_state.accumulation import GradientAccumulationPlugin
from accel_state.errors import ConfigError


def test_defaults_and_differences():
    assert GradientAccumulationPlugin().to_dict() == {
        "num_steps": None,
        "adjust_scheduler": True,
        "sync_with_dataloader": True,
        "sync_each_batch": False,
    }
    assert GradientAccumulationPlugin(2, sync_each_batch=True).to_kwargs() == {
        "num_steps": 2,
        "sync_each_batch": True,
    }


def test_less_than_one_step_is_refused():
    with pytest.raises(ConfigError, match="`num_steps` must be at least 1, got 0"):
        GradientAccumulationPlugin(num_steps=0)
