from __future__ import annotations

from pathlib import Path

import pytest

from accel.commands.config.objects import BaseConfig, ClusterConfig, SageMakerConfig, load_config_from_file
from accel_launch.config.file import read_config
from accel_state.enums import ComputeEnvironment, DistributedType
from accel_state.errors import ConfigError


def test_words_that_yaml_takes_for_truth_values_are_words_again(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("mixed_precision: no\ndowncast_bf16: 'no'\ndistributed_type: NO\n")
    loaded = load_config_from_file(str(path))
    assert (loaded.mixed_precision, loaded.downcast_bf16) == ("no", False)
    assert loaded.distributed_type is DistributedType.NO
    assert loaded.compute_environment is ComputeEnvironment.LOCAL_MACHINE


def test_without_a_name_it_is_the_users_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match="There is no config file. Write one with `accel config`"):
        load_config_from_file(None)
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text("fsdp_config: {fsdp_version: 2}\n")
    assert load_config_from_file(None).fsdp_config == {"fsdp_version": 2}


def test_a_sagemaker_file_without_its_keys_is_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("compute_environment: AMAZON_SAGEMAKER\n")
    with pytest.raises(ConfigError, match="lacks `ec2_instance_type`, `iam_role_name`. Add that"):
        load_config_from_file(str(path))


@pytest.mark.parametrize("name", ["c.yaml", "c.json"])
def test_an_object_is_written_as_a_file_that_is_read_as_it(tmp_path, name):
    config = ClusterConfig(
        compute_environment="LOCAL_MACHINE",
        distributed_type="FSDP",
        mixed_precision="bf16",
        use_cpu=False,
        debug=False,
        num_processes=2,
        fsdp_config={"fsdp_version": 2},
    )
    write = config.to_json_file if name.endswith("json") else config.to_yaml_file
    write(tmp_path / name)
    loaded = load_config_from_file(str(tmp_path / name))
    assert isinstance(loaded, BaseConfig)
    assert loaded.to_dict() == config.to_dict()


FILES = sorted((Path(__file__).parents[4] / "accel-launch/tests/config/peer_files").glob("*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_of_accelerate_is_an_object(path):
    loaded = load_config_from_file(str(path))
    assert isinstance(loaded, SageMakerConfig if path.stem.startswith("sagemaker") else ClusterConfig)
    values = read_config(path).values
    assert loaded.num_machines == values["num_machines"]
    assert loaded.distributed_type == values["distributed_type"]
    assert loaded.mixed_precision == values["mixed_precision"]
