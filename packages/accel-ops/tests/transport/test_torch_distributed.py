from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from accel_ops import broadcast, gather, gather_object, reduce
from accel_ops.transport import current_transport
from accel_ops.transport.torch_distributed import _DIRECT_BYTES
from accel_state import PartialState
from accel_state.testing.scripts import run_script


def structures(rank: int) -> list[Any]:
    return [
        {str(i): torch.full((2, 3), rank + i) for i in range(4)},
        [torch.tensor([float(rank)])] * 3,  # rows of one number: nothing has to be moved to join them
        [torch.tensor(rank), torch.tensor(rank + 1)],
        torch.full((5,), rank, dtype=torch.bfloat16),
        [torch.full((rank * 0 + size,), rank) for size in (1, 2, 3)],
    ]


def results_and_later_ones() -> list[str]:
    rank = PartialState().process_index
    changed = []
    for index, data in enumerate(structures(rank)):
        for operation in (gather, lambda data: reduce(data, "sum"), lambda data: broadcast(data, 1)):
            result = operation(data)
            before = str(result)
            for later in structures(rank + 7):
                gather(later)
            if str(result) != before:
                changed.append(f"{index} {operation}: {before} became {result}")
    return changed


def test_later_operations_leave_earlier_results_as_they_were(world):
    assert world(2).run(results_and_later_ones) == [[], []]


def sizes_around_the_change_of_the_way() -> list[bool]:
    rank, num = PartialState().process_index, PartialState().num_processes
    right, direct = [], set()
    for size in (10, 60_000, 200_000, 10):
        for _ in range(3):
            got = gather({"a": torch.full((size,), rank, dtype=torch.uint8)})["a"]
            right.append(torch.equal(got, torch.arange(num, dtype=torch.uint8).repeat_interleave(size)))
            direct.add(current_transport().frames.table.nbytes <= _DIRECT_BYTES)
    return [all(right), direct == {True, False}]


@pytest.mark.parametrize("num", [2, 3])
def test_small_frames_go_directly_and_large_ones_around_with_the_same_result(world, num):
    assert world(num).run(sizes_around_the_change_of_the_way) == [[True, True]] * num


def broadcasts_of_all_sizes() -> list[list[int]]:
    rank, transport = PartialState().process_index, current_transport()
    sums = []
    for source in range(transport.world_size):
        for size in (0, 1, 70_000, 300_000):
            sent = torch.full((size,), rank + 1, dtype=torch.uint8)
            sums.append(transport.broadcast(sent, source=source).unique().tolist())
    return sums


@pytest.mark.parametrize("num", [2, 3])
def test_broadcasts_of_all_sizes_arrive(world, num):
    wanted = [numbers for source in range(num) for numbers in ([], *[[source + 1]] * 3)]
    assert world(num).run(broadcasts_of_all_sizes) == [wanted] * num


def messages_of_the_script_itself() -> tuple[list[int], int]:
    rank = PartialState().process_index
    received = torch.zeros(1, dtype=torch.int64)
    works = [dist.irecv(received, 1 - rank), dist.isend(torch.tensor([rank + 10]), 1 - rank)]
    gathered = gather_object([rank])
    for work in works:
        work.wait()
    return gathered, int(received)


def test_messages_that_a_script_has_under_way_are_not_mixed_up_with_frames(world):
    assert world(2).run(messages_of_the_script_itself) == [([0, 1], 11), ([0, 1], 10)]


SCRIPT = """
import torch
from accel_ops import gather
from accel_state import PartialState
state = PartialState(cpu=True)
print(gather([torch.tensor(state.process_index)])[0].tolist())
"""


def test_it_works_where_torch_checks_every_collective(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    detail = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    finished = run_script(script, num_processes=2, env=detail, launcher="torchrun")
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("[0, 1]") == 2
