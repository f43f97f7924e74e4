from __future__ import annotations

import pytest

from accel_launch.config.keys import ALIASES, PLAIN_KEYS, SECTIONS, is_inert, is_unset


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
def test_only_values_that_ask_for_nothing_are_inert(key, value, inert):
    assert is_inert(key, value) is inert


def test_a_switch_that_is_off_is_a_choice_and_not_an_omission():
    assert not is_unset("use_cpu", False)
    assert is_unset("use_cpu", None)
    assert is_unset("num_processes", -1)
    assert is_unset("gpu_ids", "all")


def test_aliases_lead_from_known_keys_to_known_keys():
    known = {*PLAIN_KEYS, *(f"{section}.{key}" for section, keys in SECTIONS.items() for key in keys)}
    assert {*ALIASES, *ALIASES.values()} <= known
