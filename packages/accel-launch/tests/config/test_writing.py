from __future__ import annotations

import json

import pytest
import yaml

from accel_launch.config.file import read_config
from accel_launch.config.writing import BASIS_HERE, BASIS_SAGEMAKER, document_of, new_document, write_config
from accel_state.errors import ConfigError


def test_every_new_file_has_the_keys_that_files_always_had():
    assert document_of({}) == {}
    assert new_document({}) == {**BASIS_HERE, "downcast_bf16": "no"}
    assert new_document({"compute_environment": "AMAZON_SAGEMAKER"}) == dict(BASIS_SAGEMAKER)


def test_sections_are_nested_and_spelled_as_the_newest_files_do():
    document = document_of(
        {"fsdp_config.fsdp_backward_prefetch_policy": "BACKWARD_PRE", "downcast_bf16": True}
    )
    assert document["fsdp_config"] == {"fsdp_backward_prefetch": "BACKWARD_PRE"}
    assert document["downcast_bf16"] == "yes"


def test_the_name_decides_between_json_and_yaml(tmp_path):
    values = document_of({"num_processes": 2, "tpu_vm": ("a", "b")})
    write_config(tmp_path / "new" / "c.json", values)
    write_config(tmp_path / "c.yaml", values)
    as_json = json.loads((tmp_path / "new" / "c.json").read_text())
    assert as_json == yaml.safe_load((tmp_path / "c.yaml").read_text())
    assert as_json["tpu_vm"] == ["a", "b"]


def test_nothing_is_left_next_to_it(tmp_path):
    write_config(tmp_path / "c.yaml", {"num_processes": 2})
    write_config(tmp_path / "c.yaml", {"num_processes": 3})
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]
    assert read_config(tmp_path / "c.yaml").values["num_processes"] == 3


def test_names_of_layers_are_one_text_and_machines_are_a_list():
    values = {"fsdp_config.fsdp_transformer_layer_cls_to_wrap": ("A", "B"), "tpu_vm": ("a", "b")}
    document = document_of(values)
    assert document["fsdp_config"] == {"fsdp_transformer_layer_cls_to_wrap": "A,B"}
    assert document["tpu_vm"] == ["a", "b"]


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be written: .* Name another with `--config_file`"):
        write_config(tmp_path / "file" / "config.yaml", {})
