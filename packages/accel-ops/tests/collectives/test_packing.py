from __future__ import annotations

import pytest
import torch

from accel_ops.collectives.packing import flatten, make_buckets, rebuild


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
    leaves = [torch.ones(3), torch.ones(2).int(), large, torch.ones(1), torch.zeros(3)]
    buckets = make_buckets(leaves, lambda leaf: leaf.dtype)
    assert [[run.positions for run in bucket.runs] for bucket in buckets] == [[[0, 4], [3]], [[1]], [[2]]]


def test_packed_leaves_come_back_in_memory_of_their_own():
    shapes = [(2, 3), (), (0, 2), (2, 3), ()]
    leaves = [torch.randint(9, shape) for shape in shapes]
    leaves.append(torch.randint(9, (2, 3, 4, 5)).to(memory_format=torch.channels_last))
    (bucket,) = make_buckets(leaves, lambda leaf: leaf.dtype)
    packed = bucket.pack(leaves, torch.int64)
    assert len(packed) == bucket.num_elements() == sum(leaf.numel() for leaf in leaves)
    results = list(leaves)
    bucket.unpack(packed, lambda values, run: values.view(len(run.positions), *run.shape), results)
    for result, leaf in zip(results, leaves, strict=True):
        assert result is not leaf
        assert torch.equal(result, leaf)
        assert result.untyped_storage().nbytes() == leaf.nbytes


def test_a_single_leaf_is_not_copied():
    leaf = torch.ones(4, 2)
    (bucket,) = make_buckets([leaf], lambda leaf: leaf.dtype)
    assert bucket.pack([leaf], torch.float32).data_ptr() == leaf.data_ptr()


def test_leaves_are_put_back_where_they_were():
    data = {"a": torch.ones(2), "b": (torch.zeros(1),)}
    leaves, _ = flatten(data, user=rebuild)
    rebuilt = rebuild(data, iter([leaf + 1 for leaf in leaves]))
    assert rebuilt["a"].tolist() == [2, 2]
    assert rebuilt["b"][0].tolist() == [1]
