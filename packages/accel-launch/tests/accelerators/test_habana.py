from __future__ import annotations

import pytest

from accel_launch.accelerators.habana import Habana


@pytest.mark.parametrize("prefix", ["accel/accel", "hl"])
@pytest.mark.parametrize(("selection", "seen"), [(None, ("0", "1")), ("1", ("1",)), ("", ())])
def test_both_drivers_files_are_counted_and_the_variable_chooses(machine, prefix, selection, seen):
    root = machine([f"dev/{prefix}0", f"dev/{prefix}1", "dev/accel/accel_controlD0", "dev/hl_controlD0"])
    environ = {} if selection is None else {"HABANA_VISIBLE_MODULES": selection}
    assert Habana().visible(environ, root) == seen
