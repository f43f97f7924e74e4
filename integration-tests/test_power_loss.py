"""After a power loss at any call of a save, the old checkpoint or the new one is complete."""

import os

import power_loss
import pytest

from accel_checkpoint.saving import pending_files

REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))
pytestmark = [pytest.mark.engine("long"), pytest.mark.usefixtures("fresh_state")]


@pytest.mark.parametrize("way", power_loss.WAYS)
def test_a_power_loss_leaves_a_complete_checkpoint(way):
    num_tried, num_different, problems = power_loss.replay(way, num_states=150 * REPEATS)
    assert not problems
    assert num_tried > 100
    assert num_different > 30


class WithoutFlushes:
    """The module `os` for files that are never flushed."""

    def __getattr__(self, name):
        return (lambda descriptor: None) if name == "fsync" else getattr(os, name)


def test_a_file_that_is_not_flushed_would_be_found(monkeypatch):
    monkeypatch.setattr(pending_files, "os", WithoutFlushes())
    assert power_loss.replay("numbered", num_states=100)[2]
