"""Warnings show the user's line, and come once from a run."""

import contextlib
import warnings

import pytest

from accel_state.environment import patch_environment
from accel_state.user_warnings import user_frame, warn_user

OURS = """
def check(**options):
    with inside():
        deeper(**options)

def deeper(**options):
    warn_user("`rows` has no effect.", **options)

def frame():
    return user_frame()
"""
RANK_1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}


def ours(name="accel_data.somewhere"):
    """Return what a module of ours defines."""
    defined = {
        "__name__": name,
        "inside": contextlib.nullcontext,
        "warn_user": warn_user,
        "user_frame": user_frame,
    }
    exec(OURS, defined)
    return defined


def num_warnings(**options):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        ours()["check"](**options)
    return len(found)


def test_a_warning_shows_the_innermost_line_outside_of_our_packages():
    with pytest.warns(FutureWarning, match="`rows` has no effect") as warned:
        ours()["check"](category=FutureWarning)
    (warning,) = warned
    assert warning.filename == __file__


def test_a_package_whose_name_begins_like_ours_is_the_users():
    assert ours("accelerated.training")["frame"]().f_code.co_name == "frame"
    assert ours("accel.run.somewhere")["frame"]().f_code.co_filename == __file__


def test_a_line_warns_once():
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        for _ in range(2):
            ours()["check"]()
    assert len(found) == 1


def test_code_that_exec_runs_without_a_name_is_warned():
    with pytest.warns(UserWarning, match="`rows` has no effect"):
        exec("check()", {"check": ours()["check"]})


def test_what_all_ranks_would_report_comes_from_the_main_process(world):
    assert world(2).run(num_warnings) == [1, 0]
    assert world(2).run(num_warnings, main_process_only=False) == [1, 1]


def test_before_ranks_have_met_the_launchers_variables_identify_the_main_process():
    with patch_environment(**RANK_1):
        assert num_warnings() == 0
    with patch_environment(RANK="1"):  # `PartialState` states what is missing
        assert num_warnings() == 1
