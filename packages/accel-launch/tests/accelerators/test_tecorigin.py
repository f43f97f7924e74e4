from __future__ import annotations

import pytest

from accel_launch.accelerators.tecorigin import Tecorigin


@pytest.mark.parametrize(
    ("selection", "seen"),
    [(None, ("0", "1", "2")), ("2,0", ("2", "0")), ("0,5,1", ("0",)), ("", ()), ("-1", ())],
)
def test_device_files_are_counted_and_the_variable_chooses(machine, selection, seen):
    root = machine(["dev/tcaicard0", "dev/tcaicard1", "dev/tcaicard2", "dev/tcaicard_ctl"])
    environ = {} if selection is None else {"SDAA_VISIBLE_DEVICES": selection}
    assert Tecorigin().visible(environ, root) == seen
