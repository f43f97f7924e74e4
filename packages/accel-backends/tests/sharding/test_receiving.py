"""Parts of tensors arrive at the rank that asks for the whole."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from accel_backends.sharding.receiving import Receivers

ROWS = {"odd": (3, 5), "one": (1, 4), "matrix": (4, 6), "none": (0, 3)}
"""On two ranks rows of these are two and one, one and none, two and two, none."""


def receive(layout, placements, receivers, dtype):
    mesh = init_device_mesh("cpu", layout)
    receiving = Receivers(is_receiver=dist.get_rank() in receivers)
    found = {}
    for name, shape in ROWS.items():
        whole = torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(dtype)
        received = receiving.receive(distribute_tensor(whole, mesh, placements))
        found[name] = received, torch.equal(received, whole)
    return found


@pytest.mark.parametrize("receiver", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_one_receiver_gets_the_rows_and_the_others_hold_nothing(world, receiver, dtype):
    for rank, found in enumerate(world(2).run(receive, (2,), [Shard(0)], {receiver}, dtype)):
        for name, (tensor, is_whole) in found.items():
            assert is_whole if rank == receiver else tensor.numel() == 0, name


@pytest.mark.parametrize(
    ("layout", "placements", "receivers"),
    [
        ((2,), [Shard(1)], {0}),
        ((2,), [Shard(0)], {0, 1}),
        ((2, 1), [Replicate(), Shard(0)], {1}),
        ((2,), [Replicate()], {0}),
    ],
    ids=["columns", "two receivers", "a copy of its own", "whole"],
)
def test_a_receiver_gets_the_whole_however_it_is_cut(world, layout, placements, receivers):
    outcomes = world(2).run(receive, layout, placements, receivers, torch.float32)
    for rank in receivers:
        assert all(is_whole for _, is_whole in outcomes[rank].values())


def devices_of_messages():
    """Return where the parts of an offloaded tensor are when a mesh of other devices sends them."""
    mesh = init_device_mesh("cpu", (2,))
    offloaded = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    mesh._device_type = "meta"  # stands for an accelerator, whose backend cannot send memory of the CPU
    devices = []

    def record(operations):
        devices.extend(one.tensor.device.type for one in operations)
        return []

    exchange, dist.batch_isend_irecv = dist.batch_isend_irecv, record
    try:
        Receivers(is_receiver=dist.get_rank() == 0, ranks=[0]).receive(offloaded)
    finally:
        dist.batch_isend_irecv = exchange
    return devices


def test_parts_that_are_offloaded_are_sent_from_the_device_of_the_mesh(world):
    assert world(2).run(devices_of_messages) == [["meta"], ["meta"]]
