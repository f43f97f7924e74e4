from __future__ import annotations

import pytest

from accel_state import PartialState, current_runtime
from accel_state.lost_rank import note_lost_rank


@pytest.mark.parametrize("debug", [False, True])
def test_the_note_of_a_lost_rank_names_debug_mode_unless_it_is_on(debug):
    PartialState(cpu=True)
    current_runtime().debug = debug
    error = RuntimeError("gloo: Timed out waiting 20000ms for recv operation")
    note_lost_rank(error, "backward")
    (note,) = error.__notes__
    assert note.startswith("This rank was in `backward`, called from ")
    assert ("`accel launch --debug` names" in note) is not debug
