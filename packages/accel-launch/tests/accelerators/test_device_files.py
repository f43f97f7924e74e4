from __future__ import annotations

import pytest

from accel_launch.accelerators.device_files import (
    ASCEND,
    CAMBRICON,
    HABANA,
    MOORE_THREADS,
    TECORIGIN,
    num_tpu_chips,
)

# The files of each driver without their number, and one that is no device.
FILES = [
    (ASCEND, "davinci", "davinci_manager"),
    (CAMBRICON, "cambricon_dev", "cambricon_ctl"),
    (HABANA, "accel/accel", "accel/accel_controlD0"),
    (HABANA, "hl", "hl_controlD0"),
    (MOORE_THREADS, "mtgpu.", "mtgpu.ctl"),
    (TECORIGIN, "tcaicard", "tcaicard_ctl"),
]


@pytest.mark.parametrize(("vendor", "prefix", "other"), FILES)
@pytest.mark.parametrize(
    ("selection", "seen"),
    [(None, ("0", "1", "2")), ("2,0", ("2", "0")), ("0,5,1", ("0",)), ("", ()), ("-1", ())],
)
def test_device_files_are_counted_and_the_variable_chooses(machine, vendor, prefix, other, selection, seen):
    root = machine([*(f"dev/{prefix}{number}" for number in range(3)), f"dev/{other}"])
    environ = {} if selection is None else {vendor.variable: selection}
    assert vendor.visible(environ, root) == seen


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
