from __future__ import annotations

import pytest

from accel_launch.accelerators.tpu import num_tpu_chips


@pytest.mark.parametrize(
    ("files", "number"),
    [
        (["dev/accel0", "dev/accel1"], 2),
        (["dev/vfio/0", "dev/vfio/1", "dev/vfio/vfio"], 2),
        (["dev/null"], 0),
    ],
)
def test_chips_are_counted(machine, files, number):
    assert num_tpu_chips(machine(files)) == number
