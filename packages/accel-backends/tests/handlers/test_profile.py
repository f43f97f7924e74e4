from __future__ import annotations

import pytest
import torch

from accel_backends import ProfileKwargs
from accel_state.errors import ConfigError


def test_a_profile_records_the_operators_that_ran():
    with ProfileKwargs(activities=["cpu"], record_shapes=True).build() as profile:
        torch.ones(3, 4) @ torch.ones(4, 5)
    recorded = {event.key: event for event in profile.key_averages(group_by_input_shape=True)}
    assert recorded["aten::mm"].input_shapes[:2] == [[3, 4], [4, 5]]


def test_flops_and_memory_are_recorded_on_demand():
    with ProfileKwargs(activities=["cpu"], with_flops=True, profile_memory=True).build() as profile:
        torch.ones(2, 4) @ torch.ones(4, 8)
    events = profile.key_averages()
    assert sum(event.flops for event in events) == 2 * 2 * 4 * 8
    assert sum(event.self_cpu_memory_usage for event in events if event.key == "aten::ones") == 0
    assert any(event.self_cpu_memory_usage > 0 for event in events)


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_a_schedule_calls_back_once_per_cycle():
    ready = []
    kwargs = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 2, "skip_first": 1},
        on_trace_ready=lambda profile: ready.append(profile.step_num),
    )
    with kwargs.build() as profile:
        for _ in range(10):
            torch.ones(2)
            profile.step()
    assert ready == [4, 7]


def test_an_unknown_activity_is_refused():
    with pytest.raises(ConfigError, match="`activities` has no member `gpu`"):
        ProfileKwargs(activities=["cpu", "gpu"])


def test_an_unknown_schedule_key_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="no key `warm_up`.*Did you mean `warmup`"):
        ProfileKwargs(schedule_option={"warm_up": 1})
