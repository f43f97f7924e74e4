"""Shards of tensors become full tensors on the ranks that receive them."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from accel_backends.fsdp.state import HeldTensor, full_tensor, gathered_state

ROWS = {"odd": (3, 5), "one": (1, 4), "matrix": (4, 6), "none": (0, 3)}
"""On two ranks rows of these are two and one, one and none, two and two, none."""


def values(dtype):
    return {
        name: torch.arange(float(torch.Size(shape).numel())).reshape(shape).to(dtype)
        for name, shape in ROWS.items()
    }


def gather(layout, placements, receivers, dtype):
    mesh = init_device_mesh("cpu", layout)
    state = {name: distribute_tensor(one, mesh, placements) for name, one in values(dtype).items()}
    state |= {"tied": state["odd"], "extra": 3}
    full = gathered_state(state, is_receiver=dist.get_rank() in receivers)
    if full:
        assert full["tied"] is full["odd"]
        assert full["extra"] == 3
    return {name: full[name] for name in ROWS if full}


@pytest.mark.parametrize(
    ("layout", "placements", "receivers", "dtype"),
    [
        ((2,), [Shard(0)], {0}, torch.float32),
        ((2,), [Shard(0)], {1}, torch.bfloat16),
        ((2,), [Shard(1)], {0}, torch.float32),
        ((2,), [Shard(0)], {0, 1}, torch.float32),
        ((2, 1), [Replicate(), Shard(0)], {1}, torch.float32),
        ((2,), [Replicate()], {0}, torch.float32),
    ],
    ids=["rows", "16 bits", "columns", "two receivers", "replicas", "replicated"],
)
def test_receivers_get_full_tensors_and_others_nothing(world, layout, placements, receivers, dtype):
    for rank, full in enumerate(world(2).run(gather, layout, placements, receivers, dtype)):
        assert list(full) == (list(ROWS) if rank in receivers else [])
        assert all(one.equal(values(dtype)[name]) for name, one in full.items())


def held_by_rank_1(dtype):
    own = {name: one if dist.get_rank() == 1 else None for name, one in values(dtype).items()}
    state = {
        name: HeldTensor.of(own[name], [1], dtype=dtype, shape=torch.Size(shape), device=torch.device("cpu"))
        for name, shape in ROWS.items()
    }
    return gathered_state(state, is_receiver=dist.get_rank() == 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensor_of_one_stage_is_sent_by_the_rank_that_holds_it(world, dtype):
    first, second = world(2).run(held_by_rank_1, dtype)
    assert second == {}
    assert all(first[name].equal(one) for name, one in values(dtype).items())


def device_of_gathering():
    """Return where an offloaded tensor is gathered over a mesh of other devices."""
    mesh = init_device_mesh("cpu", (2,))
    offloaded = distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)])
    mesh._device_type = "meta"  # stands for an accelerator, whose backend cannot send CPU memory
    devices = []

    def record(tensor):
        devices.append(tensor.to_local().device.type)

    gather, DTensor.full_tensor = DTensor.full_tensor, record
    try:
        full_tensor(offloaded)
    finally:
        DTensor.full_tensor = gather
    return devices


def test_shards_that_are_offloaded_are_gathered_on_the_device_of_the_mesh(world):
    assert world(2).run(device_of_gathering) == [["meta"], ["meta"]]
