from __future__ import annotations

import pytest

from accel_state.errors import AccelError
from accel_trackers import GeneralTracker, IncompleteTrackerError


class Complete(GeneralTracker):
    name = "complete"
    requires_logging_directory = False

    @property
    def tracker(self):
        return "run"


@pytest.mark.parametrize("lacking", ["name", "requires_logging_directory", "tracker"])
def test_a_tracker_that_lacks_something_is_refused_by_the_name_of_what_it_lacks(lacking):
    members = {"name": "x", "requires_logging_directory": False, "tracker": property(lambda self: None)}
    del members[lacking]
    incomplete = type("Mine", (GeneralTracker,), members)
    with pytest.raises(IncompleteTrackerError, match=f"`Mine` lacks `{lacking}`, .*. Add it to the class"):
        incomplete()


def test_the_error_is_what_callers_of_either_kind_expect():
    for kind in (NotImplementedError, ValueError, AccelError):
        with pytest.raises(kind):
            GeneralTracker()


def test_a_complete_tracker_and_a_blank_one_are_made_and_their_methods_do_nothing():
    for tracker in (Complete(), GeneralTracker(_blank=True)):
        tracker.start()
        tracker.store_init_configuration({"a": 1})
        tracker.log({"a": 1}, step=1, anything="goes")
        tracker.finish()
    assert Complete().tracker == "run"
    assert Complete.why_not_available() is None
    assert Complete.main_process_only


def test_what_is_set_in_init_before_the_base_counts():
    class Late(GeneralTracker):
        def __init__(self):
            self.name, self.requires_logging_directory, self.tracker = "late", False, None
            super().__init__()

    assert Late().name == "late"
