"""What both state classes share: printing, waiting, splitting, ending the group."""

import contextlib
import io
import time

import pytest
import torch.distributed as dist

from accel_state.accelerator_state import AcceleratorState
from accel_state.partial_state import PartialState

STATES = pytest.mark.parametrize("kind", [PartialState, AcceleratorState])


def printed(kind):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        kind().print("one", "two", sep="-")
    return output.getvalue()


@STATES
def test_only_the_first_process_prints(world, kind):
    assert world(2).run(printed, kind) == ["one-two\n", ""]


def arrive_late(kind, path):
    state = kind()
    if state.is_last_process:
        time.sleep(0.3)
        path.touch()
    state.wait_for_everyone()
    return path.exists()


@STATES
def test_early_process_waits_for_the_late_one(world, kind, tmp_path):
    assert world(2).run(arrive_late, kind, tmp_path / "arrived") == [True, True]


def own_share(kind, inputs, apply_padding):
    with kind().split_between_processes(inputs, apply_padding=apply_padding) as share:
        return share


@STATES
def test_each_process_gets_its_share(world, kind):
    prompts = {"prompt": ["a dog", "a cat", "a chicken"], "seed": (1, 2, 3)}
    assert world(2).run(own_share, kind, prompts, False) == [
        {"prompt": ["a dog", "a cat"], "seed": (1, 2)},
        {"prompt": ["a chicken"], "seed": (3,)},
    ]
    assert world(2).run(own_share, kind, prompts["seed"], True) == [(1, 2), (3, 3)]


def destroy(kind):
    state = kind()
    second = dist.new_group([0, 1])
    dist.barrier(second)  # a rank that destroys it earlier may fail the other's connecting
    state.destroy_process_group(second)
    kept = dist.is_initialized()
    state.destroy_process_group()
    state.destroy_process_group()
    return kept, dist.is_initialized()


@STATES
def test_group_can_be_destroyed_separately_and_with_all_others(world, kind):
    assert world(2).run(destroy, kind) == [(True, False)] * 2


@pytest.mark.usefixtures("fresh_state")
@STATES
def test_single_process_neither_waits_nor_destroys(kind):
    state = kind(cpu=True)
    state.wait_for_everyone()
    state.destroy_process_group()
    with state.main_process_first(), state.local_main_process_first():
        pass


def set_by_a_script(kind):
    """Return what the state shows when a script sets another rank, as scripts do: the rank first."""
    state = kind()
    state.process_index = state.local_process_index = 3
    state.num_processes = 4
    state.debug, state.backend = True, "other"
    shown = PartialState()
    return (
        shown.is_main_process,
        shown.is_last_process,
        shown.num_processes,
        shown.use_distributed,
        shown.debug,
        shown.backend,
        shown._shared_state["local_process_index"],
    )


@STATES
def test_what_a_script_sets_is_what_every_view_shows(world, kind):
    assert world(1).run(set_by_a_script, kind) == [(False, True, 4, True, True, "other", 3)]
