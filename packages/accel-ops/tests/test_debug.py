from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_ops import (
    DistributedOperationException,
    broadcast,
    broadcast_object_list,
    chained_operation,
    copy_tensor_to_devices,
    debug_deadline,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
    verify_operation,
)
from accel_ops.transport import current_transport
from accel_state.partial_state import PartialState
from accel_state.runtime import current_runtime

ROWS = torch.ones(2, 3)


def only_on_the_main_process(rank: int) -> None:
    if rank == 0:
        gather(ROWS)
    reduce(ROWS)


def only_on_the_main_process_and_fitting(rank: int) -> None:
    if rank == 0:
        gather(ROWS)  # fits to the one below by its shapes
    gather(ROWS)


def one_has_raised(rank: int) -> None:
    try:
        if rank == 1:
            raise KeyError("its own trouble")
        gather(ROWS)
    except KeyError:
        return


def one_waits_elsewhere(rank: int) -> None:
    if rank == 1:
        time.sleep(1)
    else:
        gather(ROWS)


def after_a_good_one(rank: int) -> None:
    gather({"fine": ROWS})
    if rank == 0:
        broadcast(ROWS)


@verify_operation
def mine(rows: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
    return reduce(rows, scale=weight)


FAULTS: dict[str, tuple[Callable[[int], Any], list[str]]] = {
    "shapes": (
        lambda rank: broadcast(torch.ones(1, *[2] * rank, 5)),
        [
            "due to shape mismatches",
            "Operation: `accel_ops.broadcast`",
            "Process 0: [1, 5]\n  - Process 1: [1, 2, 5]",
        ],
    ),
    "dtypes": (
        lambda rank: gather(ROWS.int() if rank else ROWS),
        ["mismatches of dtypes", "Process 1: ['torch.int32']"],
    ),
    "structure": (
        lambda rank: gather([ROWS] if rank else {"a": ROWS}),
        ["mismatches of structures", "Process 0: {'a': '*'}\n  - Process 1: ['*']"],
    ),
    "number of tensors": (
        lambda rank: reduce([ROWS] * (rank + 1)),
        ["mismatches of structures", "Process 0: ['*']\n  - Process 1: ['*', '*']"],
    ),
    "gather against reduce": (
        lambda rank: (reduce if rank else gather)(ROWS),
        [
            "different operations",
            "Process 0: `accel_ops.gather` on [2, 3]\n  - Process 1: `accel_ops.reduce` on [2, 3]",
        ],
    ),
    "source": (lambda rank: broadcast(ROWS, rank), ["mismatches of arguments", "`accel_ops.broadcast`"]),
    "reduction": (lambda rank: reduce(ROWS, "mean" if rank else "sum"), ["mismatches of arguments", "'sum'"]),
    "dimensions to pad": (
        lambda rank: pad_across_processes(torch.ones([2] * (rank + 1))),
        ["mismatches of dimensions", "Process 0: [1]\n  - Process 1: [2]"],
    ),
    "objects against tensors": (
        lambda rank: gather_object([1]) if rank else gather(ROWS),
        ["different operations", "Process 1: `accel_ops.gather_object`"],
    ),
    "inside of another operation": (
        lambda rank: broadcast_object_list([1]) if rank else copy_tensor_to_devices(ROWS),
        ["different operations", "Process 0: `accel_ops.copy_tensor_to_devices`"],
    ),
    "only on the main process": (
        only_on_the_main_process,
        ["different operations", "Process 0: `accel_ops.gather`", "in only_on_the_main_process"],
    ),
    "a function of the user": (
        lambda rank: mine(ROWS, weight=rank),
        ["test_debug.mine`", "mismatches of arguments"],
    ),
}


def fitting_and_then_not(rank: int) -> None:
    if rank == 0:
        gather(ROWS)
    else:
        gather(ROWS)
    gather(torch.ones(rank + 1))


FAULTS["after calls from different places"] = (
    fitting_and_then_not,
    ["due to shape mismatches", "was already called from different places", "in fitting_and_then_not"],
)

ABSENCES: dict[str, tuple[Callable[[int], Any], list[str]]] = {
    "raised and left": (one_has_raised, ["process 1 did not reach `accel_ops.gather` within 1 seconds"]),
    "busy elsewhere": (one_waits_elsewhere, ["process 1 did not reach", "Process 1: has not reached it"]),
    "only on the main process": (
        only_on_the_main_process_and_fitting,
        [
            "process 1 did not reach",
            "was already called from different places",
            "in only_on_the_main_process_and_fitting",
        ],
    ),
    "after a good one": (
        after_a_good_one,
        ["process 1 was last seen in `accel_ops.gather` at", "in after_a_good_one"],
    ),
}


def run_fault(table: str, name: str, deadline_s: float) -> str:
    current_runtime().debug = True
    body, _ = globals()[table][name]
    with debug_deadline(deadline_s):
        try:
            body(PartialState().process_index)
        except DistributedOperationException as error:
            return str(error)
    return ""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_alike_on_every_rank(world, fault):
    messages = world(2).run(run_fault, "FAULTS", fault, 20)
    assert messages[0] == messages[1]
    for part in [*FAULTS[fault][1], "Called from:", "test_debug.py:"]:
        assert part in messages[0]


def run_absence(name: str) -> tuple[str, bool, str]:
    """Return the error, whether the absent rank learns of it at its next operation, and the error after."""
    message = run_fault("ABSENCES", name, 1)
    dist.barrier()
    has_learnt = PartialState().process_index == 0 or "had stopped waiting" in run_fault_of(
        lambda rank: gather(ROWS)
    )
    return message, has_learnt, run_fault_of(lambda rank: gather(ROWS))


@pytest.mark.parametrize("fault", ABSENCES)
def test_a_rank_that_does_not_come_is_named_and_finds_back_into_step(world, fault):
    outcomes = world(2).run(run_absence, fault)
    assert [outcome[1:] for outcome in outcomes] == [(True, "")] * 2
    messages = [message for message, *_ in outcomes]
    for part in [*ABSENCES[fault][1], "test_debug.py:"]:
        assert part.lower() in messages[0].lower()


def late_rank() -> str:
    current_runtime().debug = True
    with debug_deadline(0.3):
        try:
            if PartialState().process_index == 1:
                time.sleep(2.5)
            gather(ROWS)
        except DistributedOperationException as error:
            return str(error)
    return ""


def test_a_rank_that_comes_late_does_not_wait_for_those_that_have_aborted(world):
    first, second = world(2).run(late_rank)
    assert "process 1 did not reach" in first
    assert "Process 1 reached `accel_ops.gather` after the other processes had stopped waiting" in second


def one_of_three_differs() -> str:
    return run_fault_of(lambda rank: gather(torch.ones(2 if rank == 1 else 1)))


def run_fault_of(body: Callable[[int], Any]) -> str:
    current_runtime().debug = True
    try:
        body(PartialState().process_index)
    except DistributedOperationException as error:
        return str(error)
    return ""


def test_the_shapes_of_all_ranks_are_shown(world):
    for message in world(3).run(one_of_three_differs):
        assert "Input shapes:\n  - Process 0: [1]\n  - Process 1: [2]\n  - Process 2: [1]" in message


def everything_fits() -> list[Any]:
    current_runtime().debug = True
    rank = PartialState().process_index
    results: list[Any] = [mine(torch.tensor([float(rank)])).tolist() for _ in range(4)]
    results.append(gather(pad_across_processes(torch.ones(rank + 1))).tolist())
    results.append(gather_object(["x" * rank]))
    results.append(copy_tensor_to_devices(torch.ones(2) if rank else None).tolist())
    dist.barrier()
    return results


def test_calls_that_fit_go_through(world):
    assert world(2).run(everything_fits) == [[[0.5]] * 4 + [[1, 0, 1, 1], ["", "x"], [1, 1]]] * 2


def keys_left_behind() -> tuple[int, int]:
    current_runtime().debug = True
    counts = []
    for _ in range(2):
        for _ in range(5):
            gather(ROWS)
        dist.barrier()
        counts.append(current_transport().store.num_keys())
        dist.barrier()
    return counts[0], counts[1]


def test_the_store_does_not_grow_with_the_number_of_calls(world):
    for before, after in world(2).run(keys_left_behind):
        assert after == before


def test_without_debug_mode_a_decorated_function_is_just_called():
    assert mine(ROWS) is ROWS
    assert mine.__name__ == "mine"


def test_a_chain_names_the_function_and_the_operation(make_ranks):
    @chained_operation
    def both(rank: int) -> torch.Tensor:
        return gather(torch.ones(rank + 1))

    error = make_ranks(2).outcomes(both)[0]
    assert "Error found while calling `" in str(error)
    assert ".both`. Please see the earlier error for more details." in str(error)
    assert isinstance(error.__cause__, DistributedOperationException)
    assert "shape mismatches" in str(error.__cause__)
