from __future__ import annotations

from datetime import date

import pytest

from accel_launch.config.file import ALIASES, PLAIN_KEYS, SECTIONS, is_inert, is_unset, problem_of


@pytest.mark.parametrize(
    ("key", "value", "inert"),
    [
        ("tpu_use_cluster", False, True),
        ("tpu_env", [], True),
        ("downcast_bf16", "no", True),
        ("rdzv_backend", "static", True),
        ("rdzv_backend", "c10d", False),
        ("same_network", True, True),
        ("machine_rank", 0, True),
        ("machine_rank", 1, False),
        ("main_process_ip", None, True),
        ("main_process_ip", "10.0.0.1", False),
        ("fsdp_config.fsdp_version", 2, False),
        # 0 and false are equal in Python, but the one is a number of something and the other a switch
        ("fsdp_config.fsdp_min_num_params", 0, False),
    ],
)
def test_only_values_that_request_nothing_are_inert(key, value, inert):
    assert is_inert(key, value) is inert


def test_a_switch_that_is_off_is_a_choice_and_not_an_omission():
    assert not is_unset("use_cpu", False)
    assert is_unset("use_cpu", None)
    assert is_unset("num_processes", -1)
    assert is_unset("gpu_ids", "all")


def test_aliases_lead_from_known_keys_to_known_keys():
    known = {*PLAIN_KEYS, *(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys)}
    assert {*ALIASES, *ALIASES.values()} <= known


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
def test_values_of_a_wrong_kind_are_reported(key, value, problem):
    assert problem in problem_of(key, value)


def test_a_few_lines_that_mean_billions_of_values_are_refused_at_once():
    bomb: list = ["x"] * 10
    for _ in range(12):
        bomb = [bomb] * 10
    assert "more than 10000 values" in problem_of("additional_args", {"a": bomb})
