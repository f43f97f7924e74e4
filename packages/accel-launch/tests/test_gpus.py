from __future__ import annotations

import pytest

from accel_launch.gpus import selected_gpus, visible_gpus


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
    assert selected_gpus(selection, ("0", "2", "10")) == expected


def test_without_gpus_no_name_is_known():
    assert selected_gpus("GPU-8932f937", ()) == ()


def test_an_empty_machine_has_none(tmp_path):
    assert visible_gpus({}, tmp_path) == ()
