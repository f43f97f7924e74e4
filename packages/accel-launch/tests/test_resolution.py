from __future__ import annotations

from pathlib import Path

import pytest

from accel_launch.config.file import ConfigFile
from accel_launch.options import OPTIONS
from accel_launch.resolution import Resolved, resolve
from accel_state.errors import ConfigError

# name: (text of the flag, text of the variable, value in the file) and what each means, then the default
CASES = {
    "mixed_precision": ("fp16", "bf16", "fp8", ("fp16", "bf16", "fp8", "no")),
    "num_processes": ("2", "3", 4, (2, 3, 4, None)),
    "use_cpu": ("true", "yes", True, (True, True, True, False)),
    "gradient_accumulation_steps": ("2", "3", 4, (2, 3, 4, None)),
    "master_port": ("0", "29501", 29502, (0, 29501, 29502, None)),
    "dynamo_backend": ("eager", "INDUCTOR", "aot_eager", ("EAGER", "INDUCTOR", "AOT_EAGER", "NO")),
    "gpu_ids": ("0", "1", "2,3", ("0", "1", "2,3", None)),
}
SOURCES = ("flag", "environment", "config file", "default")
SETTINGS = {setting.name: setting for setting in OPTIONS}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("given", range(8))
def test_flag_before_environment_before_config_file_before_default(name, given):
    """All eight combinations of which settings are given."""
    setting, (flag, variable, in_file, values) = SETTINGS[name], CASES[name]
    has_flag, has_variable, has_key = given & 1, given & 2, given & 4
    first = 0 if has_flag else 1 if has_variable else 2 if has_key else 3
    resolved = resolve(
        [setting],
        flags={name: flag} if has_flag else {},
        environ={setting.variable: variable} if has_variable else {},
        config=ConfigFile(Path("c.yaml"), {setting.config_key: in_file} if has_key else {}),
    )
    assert resolved[name] == Resolved(values[first], SOURCES[first])


@pytest.mark.parametrize(
    "place",
    [
        {"flags": {"mixed_precision": ""}},
        {"environ": {"ACCELERATE_MIXED_PRECISION": " "}},
        {"config": ConfigFile(Path("c.yaml"), {"mixed_precision": ""})},
    ],
)
def test_a_blank_text_prints_nothing(place):
    arguments = {"flags": {}, "environ": {}, "config": ConfigFile()} | place
    assert resolve([SETTINGS["mixed_precision"]], **arguments)["mixed_precision"].source == "default"


def test_an_unquoted_no_in_yaml_means_no_mixed_precision():
    config = ConfigFile(Path("c.yaml"), {"mixed_precision": False})
    assert resolve([SETTINGS["mixed_precision"]], flags={}, environ={}, config=config)[
        "mixed_precision"
    ] == Resolved("no", "config file")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"flags": {"num_processes": "-2"}}, r"`--num_processes` is `-2`"),
        ({"environ": {"ACCELERATE_NUM_PROCESSES": "two"}}, r"`ACCELERATE_NUM_PROCESSES` is `two`"),
        ({"config": ConfigFile(Path("c.yaml"), {"num_processes": 0})}, r"`num_processes` in `c.yaml` is `0`"),
    ],
)
def test_a_wrong_value_is_refused_under_the_name_it_was_given_by(place, message):
    arguments = {"flags": {}, "environ": {}, "config": ConfigFile()} | place
    with pytest.raises(ConfigError, match=message):
        resolve([SETTINGS["num_processes"]], **arguments)
