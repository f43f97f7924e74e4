from __future__ import annotations

import pytest
import torch

from accel_ops.collectives.packing import flatten, group_leaves, pack, rebuild, unpack


def structure_of(data: object) -> str:
    return flatten(data, user=structure_of)[1]


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(2), "c": [torch.ones(3)]},
        {"a": torch.ones(2), "b": torch.ones(3)},
        {"b": [torch.ones(3)], "a": torch.ones(2)},
        {"a": [torch.ones(2), torch.ones(3)]},
    ],
)
def test_any_change_of_the_structure_changes_its_text(other):
    assert structure_of({"a": torch.ones(2), "b": [torch.ones(3)]}) != structure_of(other)


def test_nesting_is_told_apart():
    one, two = torch.ones(1), torch.ones(1)
    assert structure_of([[one], two]) != structure_of([one, [two]])


def test_keys_are_written_by_value_and_objects_by_class():
    class Key:
        pass

    rows = torch.ones(1)
    assert structure_of({Key(): rows}) == structure_of({Key(): rows})
    assert structure_of({("a", Key()): rows}) != structure_of({("b", Key()): rows})


def test_leaves_are_grouped_by_dtype_and_large_ones_are_alone():
    large = torch.ones(1 << 18)
    leaves = [torch.ones(3), torch.ones(2).int(), large, torch.ones(1)]
    assert group_leaves(leaves, lambda leaf: leaf.dtype) == [[0, 3], [1], [2]]


def test_packed_leaves_come_back_in_memory_of_their_own():
    leaves = [torch.arange(6).view(2, 3), torch.tensor(7), torch.empty(0, 2, dtype=torch.int64)]
    packed = pack(leaves)
    pieces = unpack(packed, [leaf.numel() for leaf in leaves], [leaf.shape for leaf in leaves])
    for piece, leaf in zip(pieces, leaves, strict=True):
        assert torch.equal(piece, leaf)
        assert piece.untyped_storage().nbytes() == leaf.nbytes


def test_a_single_leaf_is_not_copied():
    leaf = torch.ones(4, 2)
    assert pack([leaf]).data_ptr() == leaf.data_ptr()


def test_leaves_are_put_back_where_they_were():
    data = {"a": torch.ones(2), "b": (torch.zeros(1),)}
    leaves, _ = flatten(data, user=rebuild)
    rebuilt = rebuild(data, iter([leaf + 1 for leaf in leaves]))
    assert rebuilt["a"].tolist() == [2, 2]
    assert rebuilt["b"][0].tolist() == [1]
