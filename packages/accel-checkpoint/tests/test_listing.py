"""Checkpoints are found wherever an interrupted save has left them."""

import pytest
import torch

from accel_checkpoint import CheckpointFolder
from accel_checkpoint.listing import State, check_loadable, checkpoints_in, find_newest, highest_number
from accel_state import PartialState

pytestmark = pytest.mark.usefixtures("fresh_state")
MOVED_ASIDE = ".tmp-previous-checkpoint_3-0123abcd-0123abcd-1-1-1"


@pytest.fixture
def folder(fresh_state, tmp_path):
    """Checkpoints 1 and 3, of which 3 was moved aside by a save that did not get any further."""
    PartialState(cpu=True)
    checkpoints = CheckpointFolder(tmp_path)
    for step in (1, 3):
        with checkpoints.save(step) as stage:
            stage.write("model.safetensors", {"w": torch.full((2,), float(step))})
    (tmp_path / "checkpoint_3").rename(tmp_path / MOVED_ASIDE)
    return tmp_path


def test_a_checkpoint_that_was_moved_aside_is_listed_under_its_number(folder):
    assert [(one.number, one.path.name, one.state) for one in checkpoints_in(folder)] == [
        (1, "checkpoint_1", State.COMMITTED),
        (3, MOVED_ASIDE, State.COMMITTED),
    ]
    assert [one.step for one in CheckpointFolder(folder).checkpoints()] == [1, 3]


def test_a_checkpoint_that_was_moved_aside_is_loaded_and_its_number_is_used(folder):
    assert find_newest(folder) == folder / MOVED_ASIDE
    found = check_loadable(folder / "checkpoint_3", verify=True)
    assert found.path == folder / MOVED_ASIDE
    assert found.next_number() == "4"
    assert highest_number(folder) == 3


def test_the_newest_is_last_and_can_be_left_out(folder):
    (folder / "best").mkdir()
    (folder / "checkpoint_1" / "model.safetensors").rename(folder / "best" / "model.safetensors")
    (folder / "checkpoint_1").rename(folder / "checkpoint_2")
    assert [one.path.name for one in checkpoints_in(folder)] == ["best", "checkpoint_2", MOVED_ASIDE]
    assert find_newest(folder, other_than=folder / MOVED_ASIDE) is None
