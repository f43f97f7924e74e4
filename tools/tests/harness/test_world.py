"""The world of live processes: what it returns, and what it says when a rank raises, dies or hangs."""

import os
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist

from accel_checkpoint.ranks.agreement import agreement_of, first
from accel_state.errors import ConfigError
from accel_state.partial_state import PartialState
from tools.harness.world import WorldError


def sum_of_ranks(scale, *, offset=0):
    value = torch.tensor(float(PartialState().process_index * scale + offset))
    dist.all_reduce(value)
    return value.item()


def raise_on_rank_1():
    if PartialState().process_index == 1:
        raise ConfigError("rank 1 cannot")
    dist.barrier()


class UnpicklableError(Exception):
    def __init__(self, a, b):
        super().__init__("two became one")


def raise_what_cannot_travel():
    raise UnpicklableError(1, 2)


def die_on_rank_0():
    if PartialState().process_index == 0:
        print("last words", flush=True)
        os._exit(7)
    dist.barrier()


def leak_variable():
    os.environ["LEFT_BEHIND"] = "1"
    torch.set_default_dtype(torch.float64)


def has_variable():
    return "LEFT_BEHIND" in os.environ or torch.get_default_dtype() != torch.float32


def pid():
    return os.getpid()


def threads_and_random():
    return torch.get_num_threads(), torch.rand(1).item(), np.random.rand()


def save_alone():
    """Rank 0 begins a round without the others, as a save on the main process does."""
    rank = PartialState().process_index
    agreement = agreement_of(rank=rank, world_size=2, gather=list)
    if rank == 0:
        agreement.agree(agreement.next_topic("save"), "", first, wait_s=0.1)


def save_together():
    rank = PartialState().process_index
    return agreement_of(rank=rank, world_size=2, gather=list).agree_on("save", str(rank), first)


def destroy_group():
    PartialState().destroy_process_group()


def save_without_rank_2(folder):
    if dist.get_rank() == 2:
        with (folder / "kept").open("w"):
            time.sleep(100)
    agreement = agreement_of(rank=dist.get_rank(), world_size=3, gather=list)
    agreement.agree_on("save", "", first)


def test_each_body_starts_with_the_same_random_state(world):
    first = world(2).run(threads_and_random)
    assert first == world(2).run(threads_and_random)
    assert first[0][0] == 1


def test_error_of_a_rank_is_raised_with_rank_and_trace(world):
    started = time.monotonic()
    with pytest.raises(ConfigError, match="rank 1 cannot") as caught:
        world(2).run(raise_on_rank_1)
    assert "--- rank 1 of 2" in caught.value.__notes__[0]
    assert "in raise_on_rank_1" in caught.value.__notes__[0]
    assert time.monotonic() - started < 25, "the rank in the barrier was waited for"
    assert world(2).run(sum_of_ranks, 1) == [1.0, 1.0]


def test_error_that_cannot_travel_is_told_as_text(world):
    with pytest.raises(WorldError, match="(?s)raise_what_cannot_travel.*two became one"):
        world(2).run(raise_what_cannot_travel)


def test_death_of_a_rank_is_told_with_its_last_words(world):
    with pytest.raises(WorldError, match="(?s)Rank 0 of 2 ended with exit code 7.*last words"):
        world(2).run(die_on_rank_0)
    assert world(2).run(sum_of_ranks, 1) == [1.0, 1.0]


def test_all_ranks_show_their_files_and_agreements_when_one_hangs(world, tmp_path):
    before = world(3).run(pid)
    with pytest.raises(WorldError) as caught:
        world(3).run(save_without_rank_2, tmp_path, timeout_s=2)
    told = str(caught.value)
    assert told.index("--- rank 0 ") < told.index("--- rank 1 ") < told.index("--- rank 2 ")
    assert f"--- rank 2 runs, has open: {tmp_path}/kept" in told
    assert "StoreAgreement._until, line " in told
    assert "keys=['save-1/report/1', 'save-1/report/2']" in told
    assert "in save_without_rank_2" in told
    assert not {pid for pid in before if os.path.exists(f"/proc/{pid}")}


def test_body_that_leaves_a_variable_is_refused_and_undone(world):
    with pytest.raises(RuntimeError, match="LEFT_BEHIND; settings: the default dtype"):
        world(2).run(leak_variable)
    assert world(2).run(has_variable) == [False, False]


def test_ranks_that_made_different_numbers_of_calls_agree_in_the_next_body(world):
    world(2).run(save_alone)
    assert world(2).run(save_together, timeout_s=20) == ["0", "0"]


def test_group_that_a_body_destroyed_is_made_anew(world):
    world(2).run(destroy_group)
    assert world(2).run(sum_of_ranks, 1) == [1.0, 1.0]
