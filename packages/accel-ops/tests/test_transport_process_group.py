from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import torch
import torch.distributed as dist

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
from accel_ops.nested.describe import iterate_tensors
from accel_ops.transport import current_transport
from accel_state import PartialState
from tools.harness.scripts import Script, run_script


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


def broadcasts_of_all_sizes() -> list[list[int]]:
    rank, transport = PartialState().process_index, current_transport()
    sums = []
    for source in range(transport.world_size):
        for size in (0, 1, 70_000, 300_000):
            sent = torch.full((size,), rank + 1, dtype=torch.uint8)
            (received,) = transport.broadcast([sent], source=source)
            sums.append(received.unique().tolist())
    return sums


@pytest.mark.parametrize("num", [2, 3])
def test_broadcasts_of_all_sizes_arrive(world, num):
    wanted = [numbers for source in range(num) for numbers in ([], *[[source + 1]] * 3)]
    assert world(num).run(broadcasts_of_all_sizes) == [wanted] * num


def in_inference_mode_and_outside() -> list[Any]:
    rank = PartialState().process_index
    with torch.inference_mode():
        made_inside = torch.tensor([float(rank)])
        large_inside = torch.full((100_000,), float(rank))
        inside = [every_operation(made_inside.clone()), every_operation(large_inside.clone())]
    outside = [
        every_operation(torch.tensor([float(rank)])),
        every_operation(torch.full((100_000,), float(rank))),
    ]
    of_inference_tensors = [every_operation(made_inside), every_operation(large_inside)]
    return [inside, outside, of_inference_tensors]


def every_operation(rows: torch.Tensor) -> list[Any]:
    rank = PartialState().process_index
    padded = pad_across_processes(rows[: len(rows) - rank], pad_index=5)
    return [
        gather(rows)[[0, -1]].tolist(),
        reduce(rows, "sum")[0].item(),
        padded[-1].item(),
        broadcast(rows, 1)[0].item(),  # from here on rank 0 has the rows of rank 1
        gather_object([rank]),
        broadcast_object_list([rank], 1),
        copy_tensor_to_devices(rows if rank else None)[0].item(),
    ]


def test_inference_mode_changes_nothing_for_the_operations_in_it_and_after_it(world):
    for rank, outcomes in enumerate(world(2).run(in_inference_mode_and_outside)):
        wanted = [[0, 1], 1, 5 if rank else 0, 1, [0, 1], [1], 1]
        assert outcomes == [[wanted, wanted]] * 3


def under_another_default_device() -> list[Any]:
    rows = torch.full((3,), float(PartialState().process_index))
    torch.set_default_device("meta")
    try:
        return every_operation(rows)
    finally:
        torch.set_default_device(None)


def test_the_default_device_is_of_no_influence(world):
    for rank, outcome in enumerate(world(2).run(under_another_default_device)):
        assert outcome == [[0, 1], 1, 5 if rank else 0, 1, [0, 1], [1], 1]


def test_the_package_can_be_imported_under_another_default_device():
    code = (
        "import torch; torch.set_default_device('meta'); import accel_ops\n"
        "for name in accel_ops.__all__: getattr(accel_ops, name)\n"
        "print(accel_ops.gather_object([1]))"
    )
    with closing(Script(["-c", code])) as script:
        assert script.process.wait(timeout=120) == 0, script.stderr
        assert script.stdout == "[1]\n"


def versions_of_what_was_sent() -> list[int]:
    rows = [torch.ones(3), torch.ones(100_000)]
    for operation in (gather, reduce, broadcast):
        operation(rows)
    return [tensor._version for tensor in rows]


def test_autograd_takes_for_changed_only_what_a_broadcast_has_overwritten(world):
    assert world(2).run(versions_of_what_was_sent) == [[0, 0], [1, 1]]


def calls_from_two_threads() -> list[Any]:
    rank = PartialState().process_index

    def many(_: int) -> list[Any]:
        return [gather(torch.tensor([rank])).tolist() for _ in range(50)]

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(many, range(2)))


def test_equal_operations_of_two_threads_do_not_interleave(world):
    assert world(2).run(calls_from_two_threads) == [[[[0, 1]] * 50] * 2] * 2


def different_calls_from_two_threads() -> list[str]:
    rank = PartialState().process_index
    operations = [lambda: gather(torch.ones(3)), lambda: gather_object(["x" * 5000])]
    # The first call of one rank meets the second thread's of the other.
    order = operations if rank == 0 else operations[::-1]
    outcomes = []
    with ThreadPoolExecutor(1) as pool:
        for operation in order:
            try:
                pool.submit(operation).result()
                outcomes.append("done")
            except DistributedOperationException as error:
                outcomes.append(str(error))
    return [*outcomes, str(gather(torch.tensor([rank])).tolist())]


def test_threads_that_meet_in_different_operations_raise_on_every_rank(world):
    for first, second, after in world(2).run(different_calls_from_two_threads):
        for message in (first, second):
            assert "the processes called different operations" in message
        assert after == "[0, 1]"


def random_structure(generator: random.Random, rank: int, depth: int = 0) -> Any:
    """Build data of one structure on every rank, with values that differ between the ranks."""
    kind = generator.choice(["tensor", "tensor", "list", "dict", "tuple"]) if depth < 3 else "tensor"
    if kind != "tensor":
        values = [random_structure(generator, rank, depth + 1) for _ in range(generator.randint(0, 4))]
        if kind == "dict":
            return {f"key {number}": value for number, value in enumerate(values)}
        return values if kind == "list" else tuple(values)
    dtype = generator.choice(
        [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.bfloat16]
    )
    shape = [generator.choice([0, 1, 2, 3, 5]) for _ in range(generator.randint(0, 3))]
    if generator.random() < 0.1:
        shape = [generator.choice([70_000, 300_000])]
    values = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(generator.randint(0, 9999)))
    return ((values + rank) % 2).to(dtype).t() if len(shape) == 2 else ((values + rank) % 2).to(dtype)


def per_leaf(operation: str, leaf: torch.Tensor, num: int) -> torch.Tensor:
    """Do with one leaf what plain torch.distributed does."""
    sent = leaf.contiguous()
    if operation == "gather":
        rows: list[Any] = [None] * num
        dist.all_gather_object(rows, sent)
        return torch.cat([torch.atleast_1d(row) for row in rows])
    if operation == "sum":
        wide = sent.to(torch.float64, copy=True)
        dist.all_reduce(wide)
        return wide.to(torch.int64 if leaf.dtype == torch.bool else leaf.dtype)
    received = sent.clone()
    dist.broadcast(received.view(-1).view(torch.uint8), 1)
    return received


def compare_with_torch(seed: int) -> int:
    """Return how many leaves were compared."""
    rank, num = PartialState().process_index, PartialState().num_processes
    generator = random.Random(seed)
    num_compared = 0
    for _ in range(12):
        data = [random_structure(generator, rank), torch.tensor([rank])]
        leaves = [leaf.clone() for leaf in iterate_tensors(data)]  # a broadcast overwrites them
        results = {"gather": gather(data), "sum": reduce(data, "sum"), "broadcast": broadcast(data, 1)}
        for operation, result in results.items():
            for leaf, got in zip(leaves, iterate_tensors(result), strict=True):
                wanted = per_leaf(operation, leaf, num)
                assert got.dtype == wanted.dtype
                assert torch.equal(got, wanted), (operation, leaf.dtype, leaf.shape)
                num_compared += 1
    return num_compared


@pytest.mark.parametrize(("num", "seed"), [(2, 1), (3, 2), (4, 3)])
def test_random_structures_give_what_torch_gives_leaf_by_leaf(world, num, seed):
    compared = world(num).run(compare_with_torch, seed)
    assert min(compared) == max(compared) > 36


def messages_of_the_script_itself() -> tuple[list[int], int]:
    rank = PartialState().process_index
    received = torch.zeros(1, dtype=torch.int64)
    works = [dist.irecv(received, 1 - rank), dist.isend(torch.tensor([rank + 10]), 1 - rank)]
    gathered = gather_object([rank])
    for work in works:
        work.wait()
    return gathered, int(received)


def test_messages_that_a_script_has_under_way_are_not_mixed_up_with_operations(world):
    assert world(2).run(messages_of_the_script_itself) == [([0, 1], 11), ([0, 1], 10)]


SCRIPT = """
import torch
torch.distributed.set_debug_level(torch.distributed.DebugLevel.DETAIL)
from accel_ops import gather
from accel_state import PartialState
state = PartialState(cpu=True)
print(gather([torch.tensor(state.process_index)])[0].tolist())
print(type(torch.distributed.group.WORLD._get_backend(torch.device("cpu"))).__name__)
"""


def test_it_works_where_torch_checks_every_collective(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    finished = run_script(script, num_processes=2)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "[0, 1]\n_ProcessGroupWrapper\n" * 2
