from __future__ import annotations

import pytest

from accel_launch.processes.ending import describe_ending, exit_code_for_shell, signal_name


@pytest.mark.parametrize(
    ("return_code", "exit_code", "words"),
    [
        (0, 0, "ended with exit code 0"),
        (3, 3, "ended with exit code 3"),
        (-9, 137, "was killed by SIGKILL"),
        (-11, 139, "was killed by SIGSEGV"),
    ],
)
def test_an_ending_in_numbers_and_words(return_code, exit_code, words):
    assert exit_code_for_shell(return_code) == exit_code
    assert describe_ending(return_code) == words


def test_a_signal_without_a_name_keeps_its_number():
    assert signal_name(40) == "signal 40"
