from __future__ import annotations

import sys

import pytest

from accel_launch.interpreter import interpreter_command, options_before_program


@pytest.mark.parametrize(
    ("orig_argv", "argv", "options"),
    [
        (["python", "/bin/accel", "launch", "x.py"], ["/bin/accel", "launch", "x.py"], ()),
        (["python", "-u", "-m", "accel_launch", "launch"], ["/site/__main__.py", "launch"], ("-u",)),
        (["python", "-X", "dev", "-O", "/bin/accel"], ["/bin/accel"], ("-X", "dev", "-O")),
        (["python", "-m", "accel_launch"], ["/site/__main__.py"], ()),
        (["python", "-m", "accel_launch", "launch", "-m", "x"], ["/__main__.py", "launch", "-m", "x"], ()),
        (["python", "-I", "-c", "import x", "arg"], ["-c", "arg"], ("-I",)),
    ],
)
def test_options_of_the_interpreter_are_told_from_those_of_the_program(orig_argv, argv, options):
    assert options_before_program(orig_argv, argv) == options


def test_the_script_runs_under_the_python_that_runs_us():
    assert interpreter_command()[0] == sys.executable
