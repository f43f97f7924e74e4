from __future__ import annotations

import pytest

from accel_launch.accelerators.ascend import Ascend


@pytest.mark.parametrize(
    ("selection", "seen"),
    [(None, ("0", "1", "2")), ("2,0", ("2", "0")), ("0,5,1", ("0",)), ("", ()), ("-1", ())],
)
def test_device_files_are_counted_and_the_variable_chooses(machine, selection, seen):
    root = machine(["dev/davinci0", "dev/davinci1", "dev/davinci2", "dev/davinci_manager"])
    environ = {} if selection is None else {"ASCEND_RT_VISIBLE_DEVICES": selection}
    assert Ascend().visible(environ, root) == seen
