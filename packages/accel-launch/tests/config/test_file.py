from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml

from accel_launch.config.file import ConfigFile, config_folder, default_config_file, find_config, read_config
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"}, "/hf/accelerate"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/accelerate"),
        ({"HF_HOME": "", "XDG_CACHE_HOME": ""}, "~/.cache/huggingface/accelerate"),
        ({"HF_HOME": "~/hf"}, "~/hf/accelerate"),
    ],
)
def test_the_folder_follows_the_documented_order(environ, folder):
    assert config_folder(environ) == Path(folder).expanduser()


def test_yaml_is_taken_before_json_and_nothing_is_none(tmp_path):
    environ = {"HF_HOME": str(tmp_path)}
    assert default_config_file(environ) is None
    folder = tmp_path / "accelerate"
    folder.mkdir()
    (folder / "default_config.json").write_text("{}")
    assert default_config_file(environ) == folder / "default_config.json"
    (folder / "default_config.yaml").write_text("")
    assert default_config_file(environ) == folder / "default_config.yaml"


# As the questionnaire of Accelerate writes it for two GPUs of one machine.
PEERS_FILE = """\
compute_environment: LOCAL_MACHINE
debug: false
distributed_type: MULTI_GPU
downcast_bf16: 'no'
dynamo_config:
  dynamo_backend: INDUCTOR
enable_cpu_affinity: false
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
tpu_env: []
tpu_use_cluster: false
tpu_use_sudo: false
use_cpu: false
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_of_the_questionnaire_loads_as_it_is(tmp_path):
    config = read_config(write(tmp_path / "default_config.yaml", PEERS_FILE))
    assert config.values["num_processes"] == 2
    assert config.values["mixed_precision"] == "bf16"
    assert config.values["dynamo_config.dynamo_backend"] == "INDUCTOR"


def test_json_and_yaml_specify_the_same(tmp_path):
    as_json = write(tmp_path / "c.json", json.dumps(yaml.safe_load(PEERS_FILE)))
    as_yaml = write(tmp_path / "c.yaml", PEERS_FILE)
    assert read_config(as_json).values == read_config(as_yaml).values


@pytest.mark.parametrize("text", ["", "# nothing\n", "fsdp_config: {}\n", "deepspeed_config:\n"])
def test_a_file_without_settings_is_empty(tmp_path, text):
    assert dict(read_config(write(tmp_path / "c.yaml", text)).values) == {}


def test_older_spellings_become_the_newer_ones(tmp_path):
    path = write(tmp_path / "c.yaml", "dynamo_backend: 'NO'\n")
    assert dict(read_config(path).values) == {"dynamo_config.dynamo_backend": "NO"}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("fp16: true\n", {"mixed_precision": "fp16"}),
        ("fp16: 'Yes'\n", {"mixed_precision": "fp16"}),
        ("fp16: false\n", {}),
        ("fp16: 0\n", {}),
        ("fp16:\n", {}),
        ("fp16: ''\n", {}),
        ("fp16: true\nmixed_precision: bf16\n", {"mixed_precision": "bf16"}),
    ],
)
def test_the_old_switch_of_half_precision_yields_to_the_newer_key(tmp_path, text, values):
    assert dict(read_config(write(tmp_path / "c.yaml", text)).values) == values


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "mixed_precison: fp16\n", "`mixed_precison` .* Did you mean `mixed_precision`"),
        ("c.yaml", "fsdp_config: {fsdp_versoin: 2}\n", "`fsdp_versoin` in `fsdp_config` .* `fsdp_version`"),
        ("c.yaml", "1: 2\n", "Unknown key `1`"),
        ("c.yaml", "- a\n- b\n", "must hold `key: value` lines, but holds a list"),
        ("c.yaml", "just words\n", "holds only `just words`"),
        ("c.yaml", "fsdp_config: 3\n", "`fsdp_config` in the config file .* holds only `3`"),
        ("c.yaml", "fp16: ture\n", "`fp16` in the config file .* is `ture`, but it must be true or false"),
        ("c.yaml", "a: [1\n", "is not valid YAML: expected ',' or ']', .* in line 2, column 1"),
        ("c.yaml", "a: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
        ("c.json", "{", "is not valid JSON"),
    ],
)
def test_what_cannot_be_understood_is_refused_by_name(tmp_path, name, text, message):
    path = write(tmp_path / name, text)
    with pytest.raises(ConfigError, match=message) as caught:
        read_config(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read: it is no text in UTF-8"):
        read_config(path)


def test_a_folder_is_refused_without_numbers_of_the_system(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_config(tmp_path)


def test_find_config_takes_the_named_file_then_the_users_then_none(tmp_path):
    environ = {"HF_HOME": str(tmp_path)}
    assert find_config(None, environ=environ) == ConfigFile()
    (tmp_path / "accelerate").mkdir()
    own = write(tmp_path / "accelerate" / "default_config.yaml", "num_processes: 2\n")
    named = write(tmp_path / "named.yaml", "num_processes: 3\n")
    assert find_config(None, environ=environ).path == own
    assert find_config(str(named), environ=environ).values["num_processes"] == 3


def test_a_named_file_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        find_config(str(tmp_path / "none.yaml"), environ={})


def test_a_named_pipe_is_refused_and_what_a_shell_substitutes_is_read(tmp_path):
    os.mkfifo(tmp_path / "c.yaml")
    (tmp_path / "link.yaml").symlink_to("c.yaml")
    for name in ("c.yaml", "link.yaml"):
        with pytest.raises(ConfigError, match="cannot be read: it is a pipe"):
            read_config(tmp_path / name)
    reader, writer = os.pipe()
    os.write(writer, b"num_processes: 2\n")
    os.close(writer)
    assert read_config(Path(f"/dev/fd/{reader}")).values == {"num_processes": 2}
    os.close(reader)


@pytest.mark.parametrize("name", ["/dev/zero", "large.yaml"])
def test_what_is_too_large_for_a_config_file_is_refused_at_once(tmp_path, name):
    (tmp_path / "large.yaml").write_text("commands: [" + "x," * 10**6 + "]")
    with pytest.raises(ConfigError, match="cannot be read: it is larger than 256 KiB"):
        read_config(tmp_path / name)
