from __future__ import annotations

import pytest

from accel_launch.accelerators.amd import Amd

NODES = "sys/class/kfd/kfd/topology/nodes"


def node(number: int, gpu_id: int, unique_id: int) -> dict[str, str]:
    return {
        f"{NODES}/{number}/gpu_id": f"{gpu_id}\n",
        f"{NODES}/{number}/properties": f"simd_count 440\nunique_id {unique_id}\n",
    }


@pytest.mark.parametrize(
    ("environ", "seen"),
    [
        ({}, ("0", "1", "2")),
        ({"HIP_VISIBLE_DEVICES": "2,0"}, ("2", "0")),
        ({"CUDA_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"HIP_VISIBLE_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "0,1"}, ("2",)),
        ({"ROCR_VISIBLE_DEVICES": "1,2"}, ("0", "1")),  # counted again
        ({"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1"}, ("1",)),
        ({"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "1"}, ()),
        ({"ROCR_VISIBLE_DEVICES": "GPU-00000000000000ab"}, ("0",)),
        ({"HIP_VISIBLE_DEVICES": ""}, ()),
        ({"HIP_VISIBLE_DEVICES": "-1"}, ()),
    ],
)
def test_one_variable_reduces_and_the_other_chooses(machine, environ, seen):
    # The first node is the processor's.
    root = machine({**node(0, 0, 0), **node(1, 4711, 171), **node(2, 4712, 172), **node(10, 4713, 173)})
    assert Amd().visible(environ, root) == seen


def test_without_the_driver_there_are_none(tmp_path):
    assert Amd().visible({}, tmp_path) == ()
