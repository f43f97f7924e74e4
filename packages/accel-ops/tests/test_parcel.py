from __future__ import annotations

import enum
import subprocess
import sys

import pytest
import torch

from accel_ops.parcel import LARGE_BYTES, digest_of, flatten, layout_of


def layout(data: object, operation: tuple[object, ...] = ("op",)):
    leaves, outline = flatten(data, user=layout)
    return layout_of(operation, outline, leaves, result_shape=lambda leaf: leaf.shape)


def test_a_repeated_structure_is_laid_out_once():
    data = {"a": torch.ones(2), "b": [torch.ones(3)]}
    again = {"a": torch.zeros(2), "b": [torch.zeros(3)]}
    assert layout(data) is layout(again)


@pytest.mark.parametrize(
    "other",
    [
        {"a": torch.ones(3), "b": [torch.ones(3)]},
        {"a": torch.ones(2).half(), "b": [torch.ones(3)]},
        {"a": torch.ones(2), "c": [torch.ones(3)]},
        {"a": torch.ones(2), "b": torch.ones(3)},
        {"b": [torch.ones(3)], "a": torch.ones(2)},
        {"a": [torch.ones(2), torch.ones(3)]},
    ],
)
def test_any_change_of_shape_dtype_or_structure_changes_the_digest(other):
    assert layout({"a": torch.ones(2), "b": [torch.ones(3)]}).digest != layout(other).digest


def test_nesting_is_told_apart():
    one, two = torch.ones(1), torch.ones(1)
    assert layout([[one], two]).digest != layout([one, [two]]).digest
    assert layout([one]).digest != layout([one], ("other",)).digest


def test_segments_are_aligned_and_large_leaves_are_left_out():
    big = torch.ones(LARGE_BYTES // 4)
    made = layout([torch.ones(3, dtype=torch.int8), torch.ones(2, dtype=torch.float64), big])
    assert [segment.start % 16 for segment in made.segments] == [0, 0]
    assert made.large == (2,)
    assert made.total_bytes == made.packed_bytes + LARGE_BYTES


class Colour(enum.StrEnum):
    RED = "red"


def test_equal_values_have_one_digest_whatever_their_type():
    # A dict key that is remembered must not decide how an equal one is written.
    assert digest_of((1, "red")) == digest_of((1.0, Colour.RED)) == digest_of((True, "red"))
    assert digest_of((1, 2)) != digest_of((1, "2"))
    assert digest_of((0.5,)) != digest_of((0.25,))
    assert digest_of((2**60,)) != digest_of((2**60 + 1,))


def test_digests_are_the_same_in_every_process():
    code = "from accel_ops.parcel import digest_of; print(digest_of(('a', 1, None, 0.5, object())).hex())"
    lines = {
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60).stdout
        for _ in range(2)
    }
    assert len(lines) == 1
