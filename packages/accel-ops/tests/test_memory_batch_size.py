from __future__ import annotations

import re
import time

import pytest
import torch
import torch.distributed as dist

from accel_ops import DistributedOperationException, find_executable_batch_size, gather_object
from accel_state.errors import ConfigError
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime
from tools.harness.scripts import run_script


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory.")


def test_the_size_is_halved_until_it_fits_and_the_result_is_returned():
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=128)
    def train(batch_size: int, factor: int, *, plus: int = 0) -> int:
        tried.append(batch_size)
        if batch_size > 16:
            raise out_of_memory()
        return batch_size * factor + plus

    assert train(10, plus=1) == 161
    assert tried == [128, 64, 32, 16]
    assert train(1) == 16
    assert tried[4:] == [16]


def test_the_decorator_needs_no_parentheses_and_starts_at_128():
    @find_executable_batch_size
    def train(batch_size: int) -> int:
        return batch_size

    assert train() == 128
    assert train.__name__ == "train"


@pytest.mark.parametrize("reduce_batch_size_fn", [lambda size: size - 10, lambda: 90])
def test_the_next_size_can_be_chosen(reduce_batch_size_fn):
    @find_executable_batch_size(starting_batch_size=100, reduce_batch_size_fn=reduce_batch_size_fn)
    def train(batch_size: int) -> int:
        if batch_size > 90:
            raise out_of_memory()
        return batch_size

    assert train() == 90


def test_zero_is_the_end():
    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        raise out_of_memory()

    with pytest.raises(RuntimeError, match="No executable batch size found, reached zero."):
        train()


def test_other_errors_are_raised():
    @find_executable_batch_size
    def train(batch_size: int) -> None:
        raise ValueError("out of luck")

    with pytest.raises(ValueError, match="out of luck"):
        train()


def test_a_batch_size_from_the_caller_is_refused_with_the_right_call():
    @find_executable_batch_size
    def train(batch_size: int, model: str, optimizer: str) -> None: ...

    wanted = (
        "Batch size was passed into `train` as the first argument when called. "
        "Remove this as the decorator already does so: `train(model=my_model, optimizer=my_optimizer)`"
    )
    with pytest.raises(TypeError, match=re.escape(wanted)):
        train(128, "my_model", "my_optimizer")


def test_what_a_failed_try_had_is_gone_before_the_next():
    import weakref

    held: list[weakref.ref[torch.Tensor]] = []

    @find_executable_batch_size(starting_batch_size=2)
    def train(batch_size: int) -> bool:
        rows = torch.ones(batch_size)
        held.append(weakref.ref(rows))
        if batch_size == 2:
            raise out_of_memory()
        return held[0]() is None

    assert train()


def one_rank_runs_out() -> tuple[int, list[int]]:
    tried: list[int] = []

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> int:
        tried.append(batch_size)
        if batch_size > 2 and PartialState().process_index == 1:
            raise out_of_memory()
        return batch_size

    return train(), tried


def test_ranks_that_finished_try_the_smaller_size_too(world):
    assert world(2).run(one_rank_runs_out) == [(2, [8, 4, 2])] * 2


def one_rank_runs_out_before_an_operation(debug: bool) -> tuple[str, list[int]]:
    current_runtime().debug = debug
    rank = PartialState().process_index

    @find_executable_batch_size(starting_batch_size=8)
    def train(batch_size: int) -> None:
        if rank == 1:
            raise out_of_memory()
        gather_object([rank])

    try:
        train()
    except DistributedOperationException as error:
        return str(error), gather_object([rank])
    return "", []


@pytest.mark.parametrize("debug", [False, True])
def test_a_rank_in_an_operation_and_one_out_of_memory_are_named_on_every_rank(world, debug):
    for message, after in world(2).run(one_rank_runs_out_before_an_operation, debug):
        assert "the processes called different operations" in message
        assert "Process 0: `accel_ops.gather_object`" in message
        assert "Process 1: `accel_ops.find_executable_batch_size`" in message
        assert after == [0, 1]


def one_rank_runs_out_in_debug_mode_after_the_last_operation() -> tuple[int, list[int]]:
    current_runtime().debug = True
    rank = PartialState().process_index

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> int:
        gather_object([rank])
        if batch_size > 2 and rank == 1:
            raise out_of_memory()
        return batch_size

    return train(), gather_object([rank])


def test_debug_mode_stays_in_step_when_the_others_had_finished(world):
    assert world(2).run(one_rank_runs_out_in_debug_mode_after_the_last_operation) == [(2, [0, 1])] * 2


def two_searches_one_after_the_other() -> list[int]:
    results = []
    for limit in (4, 2):

        @find_executable_batch_size(starting_batch_size=8)
        def train(batch_size: int, limit: int = limit) -> int:
            if batch_size > limit and PartialState().process_index == 1:
                raise out_of_memory()
            return batch_size

        results.append(train())
    return results


def test_each_search_has_its_own_tries(world):
    assert world(3).run(two_searches_one_after_the_other) == [[4, 2]] * 3


def a_slow_rank() -> list[int]:
    sizes: list[int] = []

    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        sizes.append(batch_size)
        dist.all_reduce(torch.ones(1))
        if batch_size == 4 and dist.get_rank() == 1:
            raise out_of_memory()
        end = time.monotonic() + (1.2 if batch_size == 4 else 0)
        while time.monotonic() < end:
            torch.ones(64, 64) @ torch.ones(64, 64)

    train()
    return sizes


def test_a_rank_that_computes_on_after_another_ran_out_of_memory_repeats_its_try(world):
    assert world(3).run(a_slow_rank) == [[4, 2]] * 3


GROUP_INSIDE = """
from accel_ops import find_executable_batch_size
from accel_state import PartialState

@find_executable_batch_size(starting_batch_size=8)
def train(batch_size):
    PartialState(cpu=True)
    return batch_size

print(train())
"""


def test_the_function_may_set_the_group_up_itself(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(GROUP_INSIDE)
    finished = run_script(script, num_processes=2)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["8", "8"]


GROUP_ENDED_INSIDE = """
from accel_ops import find_executable_batch_size
from accel_state import PartialState

state = PartialState(cpu=True)

@find_executable_batch_size(starting_batch_size=8)
def train(batch_size):
    state.destroy_process_group()
    return batch_size

print(train())
"""


def test_the_function_may_end_the_group(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(GROUP_ENDED_INSIDE)
    finished = run_script(script, num_processes=2)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["8", "8"]


ONE_FAILS = """
import os, torch
from accel_ops import find_executable_batch_size
from accel_state import PartialState

state = PartialState(cpu=True)

@find_executable_batch_size(starting_batch_size=4)
def train(batch_size):
    if state.process_index == 0:
        raise KeyError("not there")
    if os.environ["OTHER"] == "is out of memory":
        raise torch.OutOfMemoryError("CUDA out of memory.")

train()
"""


@pytest.mark.parametrize("other", ["has finished", "is out of memory"])
def test_another_error_is_raised_at_once_and_ends_the_run(tmp_path, monkeypatch, other):
    monkeypatch.setenv("OTHER", other)
    script = tmp_path / "script.py"
    script.write_text(ONE_FAILS)
    begun = time.monotonic()
    finished = run_script(script, num_processes=2)
    assert time.monotonic() - begun < 100  # of the group's thirty minutes
    assert finished.returncode != 0
    assert "KeyError: 'not there'" in finished.stderr


def test_a_size_that_is_not_smaller_is_refused():
    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: 4)
    def train(batch_size: int) -> None:
        raise out_of_memory()

    with pytest.raises(ConfigError, match="must return a smaller batch size than 4, .* got 4"):
        train()
