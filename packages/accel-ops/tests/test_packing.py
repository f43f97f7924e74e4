from __future__ import annotations

import torch

from accel_ops.packing import Packed


def test_small_leaves_of_a_dtype_are_packed_together_and_large_ones_separately():
    large = torch.ones(1 << 18)
    leaves = [torch.ones(3), torch.ones(2).int(), large, torch.ones(1), torch.zeros(3)]
    assert [(flat.dtype, len(flat)) for flat in Packed(leaves).flats] == [
        (torch.float32, 7),
        (torch.int32, 2),
        (torch.float32, 1 << 18),
    ]


def test_packed_leaves_come_back_in_separate_memory():
    shapes = [(2, 3), (), (0, 2), (2, 3), ()]
    leaves = [torch.randint(9, shape) for shape in shapes]
    leaves.append(torch.randint(9, (2, 3, 4, 5)).to(memory_format=torch.channels_last))
    packed = Packed(leaves)
    (flat,) = packed.flats
    assert len(flat) == sum(leaf.numel() for leaf in leaves)
    for result, leaf in zip(packed.unpack([flat], [leaf.shape for leaf in leaves]), leaves, strict=True):
        assert torch.equal(result, leaf)
        assert result.untyped_storage().nbytes() == leaf.nbytes


def test_a_single_leaf_is_not_copied():
    leaf = torch.ones(4, 2)
    (flat,) = Packed([leaf]).flats
    assert flat.data_ptr() == leaf.data_ptr()
