import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from accel_backends.sharding.parts import local_part, new_like, offset_of


def whole(shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def part_of(shape, layout, placements):
    """Return the place and the values of this rank's part, and what a new tensor like it is."""
    mesh = init_device_mesh("cpu", layout)
    tensor = distribute_tensor(whole(shape), mesh, placements).requires_grad_()
    part = local_part(tensor)
    assert part.data_ptr() == tensor.to_local().data_ptr()
    assert not part.requires_grad
    new = new_like(tensor, torch.float64)
    local_part(new).copy_(part)
    assert not new.requires_grad
    assert new.stride() == tensor.stride()
    return offset_of(tensor), part, new.full_tensor()


@pytest.mark.parametrize("shape", [(5, 3), (2, 3), (1, 1), (0, 3)])
@pytest.mark.parametrize(
    ("layout", "placements"),
    [
        ((2,), [Shard(0)]),
        ((2,), [Shard(1)]),
        ((2,), [Replicate()]),
        ((2, 1), [Replicate(), Shard(0)]),
        ((1, 2), [Shard(1), Shard(0)]),
    ],
)
def test_a_part_lies_where_its_values_are_in_the_whole(world, shape, layout, placements):
    expected = whole(shape)
    num_covered = 0
    for offset, part, new in world(2).run(part_of, shape, layout, placements):
        begins = zip(offset, part.shape, strict=True)
        assert torch.equal(expected[tuple(slice(begin, begin + size) for begin, size in begins)], part)
        assert torch.equal(new, expected.double())
        num_covered += part.numel()
    num_copies = 2 if isinstance(placements[0], Replicate) else 1
    assert num_covered == num_copies * expected.numel()


def test_a_tensor_that_is_not_sharded_is_its_own_part():
    tensor = torch.nn.Parameter(torch.ones(2, 3))
    assert local_part(tensor).data_ptr() == tensor.data_ptr()
    assert not local_part(tensor).requires_grad
    assert offset_of(tensor) == (0, 0)
    new = new_like(tensor, torch.bfloat16)
    assert (new.shape, new.dtype, new.requires_grad) == (tensor.shape, torch.bfloat16, False)
    assert new.data_ptr() != tensor.data_ptr()
