from __future__ import annotations

import argparse

from accel_launch.config.keys import PLAIN_KEYS, SECTIONS
from accel_launch.options import OPTIONS, add_options, given_flags
from accel_state.environment import SETTINGS


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(allow_abbrev=False)
    add_options(made)
    return made


def test_flags_that_are_not_given_are_not_there():
    assert given_flags(parser().parse_args([])) == {}


def test_switches_take_no_value_and_others_do():
    flags = given_flags(parser().parse_args(["--cpu", "--num_processes", "2", "--mixed_precision=bf16"]))
    assert flags == {"use_cpu": "true", "num_processes": "2", "mixed_precision": "bf16"}


def test_what_reaches_the_ranks_comes_from_the_table_of_settings_except_the_gpus(request_for):
    own = {setting.name for setting in OPTIONS if SETTINGS.get(setting.name) != setting}
    with_variable = {
        setting.name: setting.variable for setting in OPTIONS if setting.name in own and setting.variable
    }
    assert set(with_variable) == {"gpu_ids", "launcher", "ray_address"}
    request = request_for(environ=dict.fromkeys(with_variable.values(), "1"))
    assert with_variable.values() & request.environ().keys() == {"CUDA_VISIBLE_DEVICES"}


def test_every_config_key_of_every_setting_is_known_to_the_config_file():
    unknown = []
    for setting in (*SETTINGS.values(), *OPTIONS):
        section, _, key = (setting.config_key or "").rpartition(".")
        if setting.config_key and key not in (SECTIONS[section] if section else PLAIN_KEYS):
            unknown.append(setting.config_key)
    assert unknown == []


def test_help_names_the_defaults_that_a_launch_adds():
    text = " ".join(parser().format_help().split())
    assert "Number of processes in all. Default: one for each GPU, or 1." in text
    assert "--mixed_precision {no,fp16,bf16,fp8}" in text
    assert "--main_process_port PORT" in text
