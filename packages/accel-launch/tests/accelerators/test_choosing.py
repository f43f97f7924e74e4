from __future__ import annotations

import pytest

from accel_launch.accelerators.choosing import asked_for, chosen, ordinals

UUIDS = ("GPU-aa11", "GPU-ab22", "GPU-b3")


@pytest.mark.parametrize(
    ("selection", "places"),
    [
        (None, (0, 1, 2)),
        ("2,0", (2, 0)),
        (" 0 , 2 ", (0, 2)),
        ("", ()),
        ("-1", ()),
        ("0,-1,2", (0,)),
        ("0,7,2", (0,)),
        ("0,0", ()),
        ("1gpu,2", (1, 2)),
        ("00", (0,)),
        ("GPU-b", (2,)),
        ("GPU-ab22,GPU-aa", (1, 0)),
        ("GPU-a", ()),  # two of them
        ("GPU-b3,GPU-b", ()),  # one, twice
        ("GPU-c", ()),
        ("none", ()),
    ],
)
def test_a_variable_chooses_up_to_the_first_that_is_not_there(selection, places):
    assert chosen(selection, ordinals(3), UUIDS) == places


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("2,0", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("0,7,2", ("0",)),
        ("GPU-8932f937,MIG-1", ("GPU-8932f937", "MIG-1")),
        (" 0 , 10 ", ("0", "10")),
        ("GPU-abc", ("GPU-abc",)),
        ("abc", ()),
    ],
)
def test_a_selection_ends_before_the_first_number_that_is_not_there(selection, expected):
    assert asked_for(selection, ("0", "2", "10")) == expected


def test_without_gpus_no_name_is_known():
    assert asked_for("GPU-8932f937", ()) == ()
