from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from accel_ops import (
    DistributedOperationException,
    broadcast,
    broadcast_object_list,
    copy_tensor_to_devices,
    gather,
    gather_object,
    pad_across_processes,
    reduce,
)
from accel_ops.agreement import Call, CallDescription, explain_difference

ROWS = torch.ones(2, 3)

FAULTS: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
    "shapes": (
        lambda: gather(torch.ones(1, 5)),
        lambda: gather(torch.ones(1, 2, 5)),
        (
            "Cannot apply desired operation due to shape mismatches. "
            "All shapes across devices must be valid.\n\n"
            "Operation: `accel_ops.gather`\nInput shapes:\n  - Process 0: [1, 5]\n  - Process 1: [1, 2, 5]"
        ),
    ),
    "sizes far apart": (
        lambda: reduce(torch.ones(1)),
        lambda: reduce(torch.ones(500_000)),
        "Operation: `accel_ops.reduce`\nInput shapes:\n  - Process 0: [1]\n  - Process 1: [500000]",
    ),
    "dtypes": (
        lambda: gather(ROWS.int()),
        lambda: gather(ROWS),
        (
            "due to mismatches of dtypes. They must be the same on all processes.\n\nOperation: "
            "`accel_ops.gather`\n"
            "Input dtypes:\n  - Process 0: ['torch.int32']\n  - Process 1: ['torch.float32']"
        ),
    ),
    "keys": (
        lambda: gather({"a": ROWS, "b": ROWS}),
        lambda: gather({"b": ROWS, "a": ROWS, "c": ROWS}),
        (
            "Input structures:\n  - Process 0: {'a': '*', 'b': '*'}\n  - Process 1: "
            "{'b': '*', 'a': '*', 'c': '*'}"
        ),
    ),
    "operations": (
        lambda: gather(ROWS),
        lambda: reduce(ROWS),
        (
            "the processes called different operations.\n\nOperations:\n  - Process 0: `accel_ops.gather` on "
            "[2, 3]\n"
            "  - Process 1: `accel_ops.reduce` on [2, 3]"
        ),
    ),
    "objects": (lambda: gather_object([1]), lambda: gather(ROWS), "Process 0: `accel_ops.gather_object`"),
    "object list": (
        lambda: broadcast_object_list([1]),
        lambda: gather_object([1]),
        "Process 0: `accel_ops.broadcast_object_list`",
    ),
    "source": (
        lambda: broadcast(ROWS, 0),
        lambda: broadcast(ROWS, 1),
        (
            "due to mismatches of arguments. They must be the same on all processes.\n\nOperation: "
            "`accel_ops.broadcast`"
        ),
    ),
    "reduction": (lambda: reduce(ROWS, "sum"), lambda: reduce(ROWS, "mean"), "Process 0: [\"'sum'\", '1.0']"),
    "dimensions to pad": (
        lambda: pad_across_processes(ROWS),
        lambda: pad_across_processes(ROWS[0]),
        (
            "due to mismatches of dimensions. They must be the same on all processes.\n\n"
            "Operation: `accel_ops.pad_across_processes`\nInput dimensions:\n  - Process 0: [2]\n  - Process "
            "1: [1]"
        ),
    ),
    "inside of another": (
        lambda: copy_tensor_to_devices(ROWS),
        lambda: gather(ROWS),
        "Process 1: `accel_ops.gather` on [2, 3]",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_calls_that_do_not_fit_raise_the_same_on_every_rank_and_the_next_call_works(make_ranks, fault):
    first, second, message = FAULTS[fault]
    ranks = make_ranks(2)
    errors = ranks.outcomes(lambda rank: (second if rank else first)())
    assert all(isinstance(error, DistributedOperationException) for error in errors), errors
    assert str(errors[0]) == str(errors[1])
    assert message in str(errors[0])
    assert "test_agreement.py" in str(errors[0])
    assert ranks.run(lambda rank: gather(torch.tensor(rank)).tolist()) == [[0, 1]] * 2


def test_only_the_rank_that_differs_needs_to_differ(make_ranks):
    errors = make_ranks(3).outcomes(lambda rank: gather(torch.ones(1 + rank // 2)))
    assert all("Process 0: [1]\n  - Process 1: [1]\n  - Process 2: [2]" in str(error) for error in errors)


def test_the_call_site_is_outside_of_the_library(make_ranks):
    error = make_ranks(2).outcomes(lambda rank: named_place(rank))[1]
    assert "test_agreement.py:" in str(error)
    assert "in named_place" in str(error)


def named_place(rank: int) -> object:
    return gather(torch.ones(rank + 1))


def test_a_description_survives_being_sent():
    description = Call(gather, (1, "a"), "", {"x": ROWS}, ("shapes",)).describe()
    assert CallDescription.from_json(description.to_json()) == description
    assert description.shapes == {"x": [2, 3]}


def test_calls_without_a_difference_to_show_are_listed():
    description = Call(gather).describe()
    assert "different values, or run different versions of accel" in explain_difference([description] * 2)


def test_values_that_differ_in_nothing_a_report_shows_still_raise(make_ranks):
    class One:
        pass

    class Two:
        pass

    errors = make_ranks(2).outcomes(lambda rank: gather({(Two() if rank else One()): ROWS}))
    assert all(isinstance(error, DistributedOperationException) for error in errors)


def test_digests_are_the_same_in_every_process():
    code = (
        "import torch; from accel_ops import gather; from accel_ops.agreement import Call\n"
        "print(Call(gather, ('a', 1, None, 0.5), repr(torch.float32)).digest())"
    )
    # Not forked: a separate process has another seed for the hashes of texts.
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=180).stdout
    assert printed == f"{Call(gather, ('a', 1, None, 0.5), repr(torch.float32)).digest()}\n"


def test_an_error_of_the_transport_names_the_operation_and_the_call_site(make_ranks):
    def body(rank: int) -> object:
        if rank == 1:
            raise KeyError("another trouble")
        return gather(ROWS)

    error, _ = make_ranks(2).outcomes(body)
    assert "This rank was in `accel_ops.gather`, called from" in error.__notes__[0]
    assert "test_agreement.py" in error.__notes__[0]
    assert "`accel launch --debug` names" in error.__notes__[0]
