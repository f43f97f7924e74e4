"""Each template is a config file that a launch takes unchanged."""

from __future__ import annotations

import math

import pytest

from accel_launch.cli import main
from accel_launch.config.file import read_config
from accel_launch.config.templates import FOLDER, read_template, template_names
from accel_launch.unused_settings import unused_settings
from accel_state.errors import ConfigError

VARIABLES = {
    "fp8": {"ACCELERATE_MIXED_PRECISION": "fp8", "ACCELERATE_FP8_BACKEND": "AO", "FSDP_VERSION": "2"},
    "fsdp2": {"ACCELERATE_MIXED_PRECISION": "bf16", "FSDP_VERSION": "2"},
    "hsdp_tp": {"FSDP_VERSION": "2", "PARALLELISM_CONFIG_TP_SIZE": "4"},
    "multi_node": {"ACCELERATE_MIXED_PRECISION": "bf16"},
    "zero3_offload": {
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu",
    },
}


def test_every_template_is_tried():
    assert template_names() == sorted(VARIABLES)


@pytest.mark.parametrize("name", VARIABLES)
def test_a_template_sets_what_its_name_specifies_and_nothing_without_effect(request_for, name):
    request = request_for(
        config=read_config(FOLDER / f"{name}.yaml").values, gpus=tuple(str(gpu) for gpu in range(8))
    )
    assert VARIABLES[name].items() <= request.environ().items()
    assert list(unused_settings(request)) == []


@pytest.mark.parametrize("name", VARIABLES)
def test_a_launch_with_a_template_can_be_planned(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    assert main(["config", "--template", name, "--config_file", "run.yaml"]) == 0
    capsys.readouterr()
    assert main(["launch", "--config_file", "run.yaml", "--dry-run", "train.py"]) == 0
    num_ranks = read_config(tmp_path / "run.yaml").values["num_processes"]
    assert f"WORLD_SIZE={num_ranks}\n" in capsys.readouterr().out


def test_the_sizes_of_the_axes_multiply_to_the_ranks():
    values = read_config(FOLDER / "hsdp_tp.yaml").values
    sizes = [value for key, value in values.items() if key.startswith("parallelism_config.")]
    assert math.prod(sizes) == values["num_processes"]


def test_an_unknown_template_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"`--template` is `fsdp`, .* Did you mean `fsdp2`\?"):
        read_template("fsdp")
