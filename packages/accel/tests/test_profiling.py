import json

import pytest
import torch

from accel import ProfileKwargs
from accel.profiling import traced


def steps(folder, count, schedule, **options):
    handler = ProfileKwargs(
        activities=["cpu"], schedule_option=schedule, output_trace_dir=str(folder), **options
    )
    with traced(handler, rank=3) as profiler:
        for _ in range(count):
            torch.ones(8, 8) @ torch.ones(8, 8)
            profiler.step()
    return sorted(path.name for path in folder.glob("*"))


def num_products(path):
    events = json.loads(path.read_text())["traceEvents"]
    return sum(event.get("name") == "aten::mm" for event in events)


def test_each_cycle_of_a_schedule_leaves_a_trace_of_its_active_steps(tmp_path):
    names = steps(tmp_path, 10, {"skip_first": 1, "wait": 1, "warmup": 1, "active": 2, "repeat": 2})
    assert names == ["profile_3.json", "profile_3_1.json"]
    assert [num_products(tmp_path / name) for name in names] == [2, 2]


def test_a_block_that_ends_within_an_active_cycle_leaves_what_it_has(tmp_path):
    assert steps(tmp_path, 3, {"wait": 1, "warmup": 1, "active": 5}) == ["profile_3.json"]
    assert num_products(tmp_path / "profile_3.json") == 1


def test_a_schedule_that_was_never_active_is_reported(tmp_path):
    with pytest.warns(UserWarning, match="reached no active step"):
        assert steps(tmp_path, 2, {"wait": 5, "warmup": 1, "active": 1}) == []


def test_the_users_own_handler_is_called_too(tmp_path):
    seen = []
    steps(
        tmp_path, 4, {"wait": 1, "warmup": 0, "active": 1}, on_trace_ready=lambda p: seen.append(p.step_num)
    )
    assert seen == [2, 4]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with traced(ProfileKwargs(activities=["cpu"]), rank=0) as profiler:
        torch.ones(4, 4) @ torch.ones(4, 4)
    assert any("mm" in event.key for event in profiler.key_averages())
    assert list(tmp_path.iterdir()) == []
