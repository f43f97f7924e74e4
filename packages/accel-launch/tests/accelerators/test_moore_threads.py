from __future__ import annotations

import pytest

from accel_launch.accelerators.moore_threads import MooreThreads


@pytest.mark.parametrize(
    ("selection", "seen"),
    [(None, ("0", "1", "2")), ("2,0", ("2", "0")), ("0,5,1", ("0",)), ("", ()), ("-1", ())],
)
def test_device_files_are_counted_and_the_variable_chooses(machine, selection, seen):
    root = machine(["dev/mtgpu.0", "dev/mtgpu.1", "dev/mtgpu.2", "dev/mtgpu.ctl"])
    environ = {} if selection is None else {"MUSA_VISIBLE_DEVICES": selection}
    assert MooreThreads().visible(environ, root) == seen
