from __future__ import annotations

from datetime import date

import pytest

from accel_launch.config.validation import problem_of


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_processes", 2),
        ("num_processes", "2"),
        ("main_process_ip", None),
        ("tpu_vm", ["a", "b"]),
        ("tpu_env", []),
        ("commands", ["ls", "pwd"]),
        ("fp8_config.override_linear_precision", [True, False, False]),
        ("additional_args", {"volume_size": 30, "tags": [{"Key": "a", "Value": "b"}]}),
        ("main_process_ip", []),  # nothing, whatever the brackets
    ],
)
def test_values_of_the_right_kind_pass(key, value):
    assert problem_of(key, value) is None


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("num_processes", [2], "holds a list"),
        ("main_process_ip", {"host": "a"}, "holds keys of its own"),
        ("base_job_name", date(2024, 1, 2), "read as a date; put it in quotes"),
        ("main_process_ip", "a\0b", "a character that no command line"),
        ("main_process_ip", "\ud800", "a character that no command line"),
        ("tpu_vm", ["a", date(2024, 1, 2)], "read as a date"),
        ("additional_args", {"a": b"x"}, "read as a bytes"),
    ],
)
def test_values_of_a_wrong_kind_are_told(key, value, problem):
    assert problem in problem_of(key, value)


def test_a_few_lines_that_stand_for_billions_of_values_are_refused_at_once():
    bomb: list = ["x"] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    assert "more than 10000 values" in problem_of("additional_args", {"a": bomb})
