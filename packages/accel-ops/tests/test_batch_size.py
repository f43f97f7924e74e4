from __future__ import annotations

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_ops import find_executable_batch_size, gather_object
from accel_state.errors import ConfigError, StateError
from accel_state.partial_state import PartialState


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory.")


def test_the_size_is_halved_until_it_fits_and_the_result_is_handed_on():
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


def test_what_a_failed_try_held_is_gone_before_the_next():
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


def others_wait_for_it(starting_batch_size: int) -> tuple[int, list[int], list[int]]:
    tried: list[int] = []
    timed_out: list[str] = []
    rank = PartialState().process_index

    @find_executable_batch_size(starting_batch_size=starting_batch_size)
    def train(batch_size: int) -> int:
        # As a wrapped model does, also while the error that this try ends with is dealt with.
        holding_the_group = dist.group.WORLD
        tried.append(batch_size)
        dist.barrier(holding_the_group)
        if batch_size > 2 and rank == 0:
            raise out_of_memory()
        total = torch.ones(1)
        try:
            dist.all_reduce(total)
        except RuntimeError as error:
            timed_out.extend([str(error)] * ("imed out" in str(error)))
            raise
        return int(total.item())

    result = train()
    assert not timed_out, "it was the group's timeout, not the other rank's leaving, that ended the waiting"
    return result, tried, gather_object([rank])


@pytest.mark.parametrize(("num", "sizes"), [(2, [8, 4, 2]), (3, [4, 2])])
def test_ranks_that_wait_in_a_collective_are_released_and_try_again(world, num, sizes):
    assert world(num).run(others_wait_for_it, sizes[0]) == [(num, sizes, list(range(num)))] * num


def one_rank_fails() -> Any:
    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        if PartialState().process_index == 0:
            raise KeyError("not there")

    try:
        train()
    except (KeyError, StateError) as error:
        return str(error)


def test_a_failure_of_one_rank_is_told_to_the_others(world):
    assert world(2).run(one_rank_fails) == [
        "'not there'",
        "Process 0 failed, so this process cannot go on. See its error.",
    ]


def test_a_size_that_is_not_smaller_is_refused():
    @find_executable_batch_size(starting_batch_size=8, reduce_batch_size_fn=lambda: 4)
    def train(batch_size: int) -> None:
        raise out_of_memory()

    with pytest.raises(ConfigError, match="must return a smaller batch size than 4, .* got 4"):
        train()
