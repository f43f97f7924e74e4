from __future__ import annotations

import pytest

from accel_launch.accelerators.cambricon import Cambricon


@pytest.mark.parametrize(
    ("selection", "seen"),
    [(None, ("0", "1", "2")), ("2,0", ("2", "0")), ("0,5,1", ("0",)), ("", ()), ("-1", ())],
)
def test_device_files_are_counted_and_the_variable_chooses(machine, selection, seen):
    root = machine(["dev/cambricon_dev0", "dev/cambricon_dev1", "dev/cambricon_dev2", "dev/cambricon_ctl"])
    environ = {} if selection is None else {"MLU_VISIBLE_DEVICES": selection}
    assert Cambricon().visible(environ, root) == seen
