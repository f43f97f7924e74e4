from __future__ import annotations

import pytest

from accel_trackers import (
    ABILITIES,
    LOGGER_TYPE_TO_CLASS,
    GeneralTracker,
    JsonlTracker,
    LogsImages,
    LogsTables,
    TensorBoardTracker,
)


def test_a_tracker_is_queried_what_it_can_do(tmp_path):
    tracker = TensorBoardTracker("run", tmp_path)
    assert isinstance(tracker, LogsImages)
    assert not isinstance(tracker, LogsTables)
    assert not isinstance(JsonlTracker("run", tmp_path), LogsImages)


def test_a_tracker_of_ones_own_needs_the_method_only():
    class Mine(GeneralTracker):
        name, requires_logging_directory, tracker = "mine", False, None

        def log_images(self, values, step=None):
            pass

    assert isinstance(Mine(), LogsImages)


@pytest.mark.parametrize("ability", ABILITIES)
def test_each_ability_is_one_that_some_tracker_has(ability):
    able = [
        name for name in LOGGER_TYPE_TO_CLASS if issubclass(LOGGER_TYPE_TO_CLASS[name], ABILITIES[ability])
    ]
    assert "wandb" in able
    assert "jsonl" not in able
