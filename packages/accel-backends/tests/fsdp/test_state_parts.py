import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

from accel_backends.fsdp.state import full_tensor
from accel_checkpoint.pieces import empty_like_shard, local_part, local_pieces, shard_like, wrap_like


def whole(shape):
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape)


def part_of(shape, layout, placements):
    """Return the place and the values of this rank's part, and what a new tensor like it is."""
    mesh = init_device_mesh("cpu", layout)
    tensor = distribute_tensor(whole(shape), mesh, placements).requires_grad_()
    part = local_part(tensor)
    assert part.data_ptr() == tensor.to_local().data_ptr()
    assert not part.requires_grad
    new = empty_like_shard(tensor, torch.float64)
    local_part(new).copy_(part)
    assert not new.requires_grad
    assert new.stride() == tensor.stride()
    [(offset, _)] = local_pieces(tensor)
    assert local_part(shard_like(tensor, whole(shape))).equal(part)
    return offset, part, new.full_tensor()


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
def test_a_part_is_where_its_values_are_in_the_full_tensor(world, shape, layout, placements):
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
    assert [offset for offset, _ in local_pieces(tensor)] == [(0, 0)]
    new = empty_like_shard(tensor, torch.bfloat16)
    assert (new.shape, new.dtype, new.requires_grad) == (tensor.shape, torch.bfloat16, False)
    assert new.data_ptr() != tensor.data_ptr()


FSDP_AND_TP = [
    ((19, 3), [_StridedShard(0, split_factor=2), Shard(0)], [[0, 1, 2, 3, 4], [10, 11, 12, 13, 14], [5, 6, 7, 8, 9],
     [15, 16, 17, 18]]),
    ((12, 3), [_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=3)],
     [[0, 1, 4], [2, 3, 6], [5, 8, 9], [7, 10, 11]]),
]  # fmt: skip
"""The second axis cuts first, block by block where its stride states it; the first cuts what is left."""


def parts_and_whole(shape, placements, kept):
    mesh = init_device_mesh("cpu", (2, 2))
    rank = torch.distributed.get_rank()
    local = whole(shape)[kept[rank]]
    like = DTensor.from_local(
        local, mesh, placements, run_check=False, shape=shape, stride=whole(shape).stride()
    )
    assert local_part(shard_like(like, whole(shape))).equal(local)
    for offset, part in local_pieces(wrap_like(like, local)):
        assert part.equal(whole(shape)[offset[0] :][: len(part)])
    return full_tensor(like)


@pytest.mark.parametrize(("shape", "placements", "kept"), FSDP_AND_TP)
def test_what_two_axes_shard_along_one_dimension_is_joined_again(world, shape, placements, kept):
    for found in world(4).run(parts_and_whole, shape, placements, kept):
        assert found.equal(whole(shape))
