from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.gpus import gpus_of_machine, selected_gpus, visible_gpus


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia10", "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_only_device_files_of_gpus_count_in_the_order_of_their_numbers(devices):
    assert gpus_of_machine(devices) == ("0", "2", "10")


def test_without_a_driver_there_are_none(tmp_path):
    assert gpus_of_machine(tmp_path / "missing") == ()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "0,1"}, tmp_path) == ()


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("2,0", ("2", "0")),
        ("", ()),
        ("-1", ()),
        ("0,7,2", ("0",)),
        ("GPU-8932f937,MIG-1", ("GPU-8932f937", "MIG-1")),
        (" 0 , 10 ", ("0", "10")),
    ],
)
def test_the_variable_selects_as_the_driver_does(devices, selection, expected):
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": selection}, devices) == expected
    assert selected_gpus(selection, ("0", "2", "10")) == expected


def test_without_the_variable_all_are_visible(devices):
    assert visible_gpus({}, devices) == ("0", "2", "10")
