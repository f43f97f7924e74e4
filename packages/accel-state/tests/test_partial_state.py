"""`PartialState`: one state behind all instances, and what it reports about processes."""

import datetime

import pytest
import torch

from accel_state.accelerator_state import AcceleratorState
from accel_state.errors import ConfigError, StateError
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime

pytestmark = pytest.mark.usefixtures("fresh_state")


def everything(state):
    return {
        "device": state.device,
        "backend": state.backend,
        "distributed_type": state.distributed_type,
        "num_processes": state.num_processes,
        "process_index": state.process_index,
        "local_process_index": state.local_process_index,
        "use_distributed": state.use_distributed,
        "is_main_process": state.is_main_process,
        "is_local_main_process": state.is_local_main_process,
        "is_last_process": state.is_last_process,
        "initialized": state.initialized,
        "debug": state.debug,
        "fork_launched": state.fork_launched,
    }


def everything_here():
    return everything(PartialState())


def test_single_process_is_main_and_last(monkeypatch):
    assert everything(PartialState(cpu=True)) == {
        "device": torch.device("cpu"),
        "backend": None,
        "distributed_type": "NO",
        "num_processes": 1,
        "process_index": 0,
        "local_process_index": 0,
        "use_distributed": False,
        "is_main_process": True,
        "is_local_main_process": True,
        "is_last_process": True,
        "initialized": True,
        "debug": False,
        "fork_launched": False,
    }


def test_two_processes_know_each_other(world):
    first, last = world(2).run(everything_here)
    assert first["is_main_process"]
    assert first["is_local_main_process"]
    assert not first["is_last_process"]
    assert last["is_last_process"]
    assert not last["is_main_process"]
    assert not last["is_local_main_process"]
    for rank, seen in enumerate((first, last)):
        assert (seen["process_index"], seen["local_process_index"], seen["num_processes"]) == (rank, rank, 2)
        assert (seen["backend"], seen["distributed_type"], seen["use_distributed"]) == (
            "gloo",
            "MULTI_CPU",
            True,
        )


def test_all_instances_show_one_state_that_can_be_reset():
    assert not PartialState.is_initialized()
    assert PartialState._shared_state == {}
    first, second = PartialState(cpu=True), PartialState()
    first.device = torch.device("meta")
    assert second.device == torch.device("meta")
    assert PartialState._shared_state["device"] == torch.device("meta")
    assert PartialState._shared_state["num_processes"] == 1
    PartialState._reset_state()
    assert not first.initialized
    assert PartialState._shared_state == {}
    with pytest.raises(StateError, match="Construct `Accelerator..` or `PartialState..` first"):
        _ = first.device
    assert PartialState(cpu=True).device == torch.device("cpu")


def test_environment_is_read_when_the_state_is_built(monkeypatch):
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "yes")
    monkeypatch.setenv("FORK_LAUNCHED", "1")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    state = PartialState()
    monkeypatch.setenv("ACCELERATE_DEBUG_MODE", "no")
    assert (state.debug, state.fork_launched, current_runtime().is_cpu_forced) == (True, True, True)
    assert PartialState().debug


def test_debug_mode_can_be_switched_by_a_script():
    state, other = PartialState(cpu=True), AcceleratorState()
    state.debug = True
    assert (current_runtime().debug, other.debug) == (True, True)
    other.debug = False
    assert (current_runtime().debug, state.debug) == (False, False)


def test_contradiction_to_the_state_is_refused():
    PartialState()
    current_runtime().device = torch.device("cuda", 0)
    with pytest.raises(StateError, match="`cpu=True` contradicts.*runs on `cuda:0` already"):
        PartialState(cpu=True)


def ask_for_another_group():
    with pytest.raises(
        StateError, match="`backend` requests `nccl`, but the process group was set up with `gloo`"
    ):
        PartialState(backend="nccl")
    with pytest.raises(StateError, match="`timeout` requests `0:00:01`"):
        PartialState(timeout=datetime.timedelta(seconds=1))
    return PartialState(backend="gloo").num_processes


def test_existing_group_cannot_be_asked_to_change(world):
    assert world(2).run(ask_for_another_group) == [2, 2]


def test_options_of_a_group_do_not_matter_to_a_single_process():
    PartialState(cpu=True, timeout=datetime.timedelta(seconds=1))
    assert PartialState(timeout=datetime.timedelta(seconds=2), backend="gloo").backend is None


def test_unknown_argument_is_refused():
    with pytest.raises(ConfigError, match="`tiemout` is not an argument of the process group"):
        PartialState(tiemout=3)
    assert not PartialState.is_initialized()


def reset_and_build_again():
    before = PartialState()
    place = (before.process_index, before.local_process_index, before.num_processes)
    PartialState._reset_state()
    after = PartialState()
    after.wait_for_everyone()
    return place == (after.process_index, after.local_process_index, after.num_processes)


def test_state_built_after_a_reset_takes_the_group_over(world):
    assert world(2).run(reset_and_build_again) == [True, True]


def run_where(results):
    state = PartialState()
    ran = []

    @state.on_main_process
    def main(word, *, suffix):
        """Return a word."""
        ran.append(word + suffix)
        return word

    @state.on_local_main_process()
    def local_main():
        ran.append("local main")

    @state.on_last_process
    def last():
        ran.append("last")

    @state.on_process(process_index=1)
    def one():
        ran.append("one")

    @state.on_local_process(local_process_index=0)
    def local_zero():
        ran.append("local zero")

    returned = main("main", suffix="!")
    for function in (local_main, last, one, local_zero):
        function()
    assert (main.__name__, main.__doc__) == ("main", "Return a word.")
    return ran, returned, results


def test_decorated_functions_run_where_they_should(world):
    assert world(2).run(run_where, "x") == [
        (["main!", "local main", "local zero"], "main", "x"),
        (["last", "one"], None, "x"),
    ]


def test_single_process_runs_every_decorated_function():
    state = PartialState(cpu=True)
    assert state.on_process(lambda: "ran", process_index=5)() == "ran"
    assert state.on_local_process(lambda: "ran", local_process_index=5)() == "ran"
    assert state.on_last_process(lambda: "ran")() == "ran"


def ask_for_a_process_that_is_not_there():
    with pytest.raises(ConfigError, match="`process_index` must lie between 0 and 1, got 2"):
        PartialState().on_process(process_index=2)


def test_process_that_is_not_there_is_refused(world):
    world(2).run(ask_for_a_process_that_is_not_there)
    with pytest.raises(ConfigError, match="`local_process_index` is missing"):
        PartialState(cpu=True).on_local_process(lambda: None)


def test_device_can_be_set_and_read():
    state = PartialState(cpu=True)
    state.set_device()
    assert state.default_device.type in ("cpu", "cuda", "mps", "xpu")
    state.distributed_type = "XLA"
    assert PartialState().distributed_type == "XLA"
    state.destroy_process_group()
    assert "Num processes: 1\nProcess index: 0\nLocal process index: 0\nDevice: cpu\n" in repr(state)
