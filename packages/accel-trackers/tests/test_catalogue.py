from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from accel_state.enums import LoggerType
from accel_state.errors import ConfigError, UnknownNameError
from accel_trackers import (
    LOGGER_TYPE_TO_CLASS,
    TRACKERS,
    GeneralTracker,
    IncompleteTrackerError,
    JsonlTracker,
    TensorBoardTracker,
    get_available_trackers,
    register_tracker_class,
)


@pytest.fixture
def mine():
    class Mine(GeneralTracker):
        name = "mine"
        requires_logging_directory = False
        tracker = None

    register_tracker_class(Mine)
    yield Mine
    TRACKERS.unregister("mine")


def test_our_own_trackers_come_through_the_entry_points():
    assert TRACKERS.get("tensorboard") is TensorBoardTracker
    assert TRACKERS.get("jsonl") is JsonlTracker
    assert "jsonl" in get_available_trackers()


def test_what_is_available_depends_on_what_is_installed():
    is_here = importlib.util.find_spec("tensorboard") is not None
    assert (LoggerType.TENSORBOARD in get_available_trackers()) == is_here
    assert (TensorBoardTracker.why_not_available() is None) == is_here


def test_the_mapping_finds_classes_by_enum_member_and_string():
    assert (
        LOGGER_TYPE_TO_CLASS[LoggerType.TENSORBOARD]
        is LOGGER_TYPE_TO_CLASS["tensorboard"]
        is TensorBoardTracker
    )
    assert len(LOGGER_TYPE_TO_CLASS) == len(list(LOGGER_TYPE_TO_CLASS))
    assert "tensorboard" in repr(LOGGER_TYPE_TO_CLASS)
    assert "nonsense" not in LOGGER_TYPE_TO_CLASS
    with pytest.raises(UnknownNameError, match="Did you mean `tensorboard`"):
        LOGGER_TYPE_TO_CLASS["tensorbord"]


def test_a_registered_class_is_known_and_available(mine):
    assert LOGGER_TYPE_TO_CLASS["mine"] is mine
    assert "mine" in get_available_trackers()


def test_a_tracker_that_explains_why_it_cannot_be_used_is_not_available(mine, monkeypatch):
    monkeypatch.setattr(mine, "why_not_available", classmethod(lambda cls: "needs a moon"), raising=False)
    assert "mine" not in get_available_trackers()


def test_a_class_that_replaces_another_is_a_warning(mine):
    class Other(mine):
        pass

    with pytest.warns(UserWarning, match="`Other` replaces the tracker `mine`"):
        register_tracker_class(Other)
    assert LOGGER_TYPE_TO_CLASS["mine"] is Other
    register_tracker_class(Other)


def test_the_mapping_can_be_changed(mine):
    LOGGER_TYPE_TO_CLASS.update(other=mine)
    assert "other" in get_available_trackers()
    assert LOGGER_TYPE_TO_CLASS.pop("other") is mine
    assert "other" not in get_available_trackers()


def test_what_is_no_tracker_class_is_refused():
    class Half(GeneralTracker):
        name = "half"

    with pytest.raises(ConfigError, match="is not a subclass of `GeneralTracker`"):
        register_tracker_class(dict)
    with pytest.raises(IncompleteTrackerError, match="`Half` lacks `requires_logging_directory`"):
        register_tracker_class(Half)
    assert "half" not in TRACKERS


def test_a_class_without_a_run_object_is_refused_when_it_is_built(mine):
    class Shadow(GeneralTracker):
        name = mine.name
        requires_logging_directory = False

    register_tracker_class(mine)
    with pytest.warns(UserWarning, match="`Shadow` replaces the tracker"):
        register_tracker_class(Shadow)
    with pytest.raises(IncompleteTrackerError, match="`Shadow` lacks `tracker`"):
        Shadow()


def test_neither_the_package_nor_the_list_of_trackers_imports_torch_or_tensorboard():
    code = (
        "import sys, accel_trackers as t; t.get_available_trackers(); t.filter_trackers('all', '.');"
        "t.BackgroundLog;"
        "print([m for m in ('torch', 'tensorboard', 'yaml') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True
    )
    assert done.stdout.strip() == "[]"
