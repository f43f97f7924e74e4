import base64
import json

import pytest

from accel_backends.plugins.deepspeed.hf_config import HfDeepSpeedConfig
from accel_state.errors import ConfigError

CONFIG = {
    "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "overlap_comm": False},
    "bf16": {"enabled": True},
    "train_batch_size": "auto",
}


@pytest.fixture(params=["dict", "path", "base64"])
def given(request, tmp_path):
    file = tmp_path / "ds.json"
    file.write_text(json.dumps(CONFIG))
    return {"dict": CONFIG, "path": file, "base64": base64.b64encode(file.read_bytes()).decode()}[
        request.param
    ]


def test_a_config_is_read_from_a_dict_a_file_or_base64(given):
    config = HfDeepSpeedConfig(given)
    assert config.config == CONFIG
    assert config.config is not CONFIG
    assert (config.is_zero2(), config.is_zero3(), config.is_offload()) == (False, True, True)


def test_keys_name_their_section():
    config = HfDeepSpeedConfig(CONFIG)
    assert config.get_value("zero_optimization.offload_param.device") == "cpu"
    assert config.get_value("fp16.enabled", default=4) == 4
    assert config.get_value("train_batch_size.of_what", default=4) == 4
    assert config.find_config_node("zero_optimization.stage") == (config.config["zero_optimization"], "stage")
    assert config.find_config_node("a.b.c") == (None, "c")


def test_a_key_that_is_not_there_is_neither_true_nor_false():
    config = HfDeepSpeedConfig(CONFIG)
    assert (config.is_true("bf16.enabled"), config.is_false("bf16.enabled")) == (True, False)
    assert config.is_false("zero_optimization.overlap_comm")
    assert not config.is_true("fp16.enabled")
    assert not config.is_false("fp16.enabled")


def test_sections_and_keys_can_be_removed():
    config = HfDeepSpeedConfig(CONFIG)
    config.del_config_sub_tree("zero_optimization.offload_param")
    config.del_config_sub_tree("bf16")
    config.del_config_sub_tree("optimizer")
    assert config.config == {
        "zero_optimization": {"stage": 3, "overlap_comm": False},
        "train_batch_size": "auto",
    }
    config.set_stage_and_offload()
    assert not config.is_offload()
    with pytest.raises(ConfigError, match="has no `optimizer` to remove"):
        config.del_config_sub_tree("optimizer", must_exist=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("missing.json", "`missing.json` does not exist, and it is no base64"),
        (base64.b64encode(b"{1").decode(), "in base64 is not JSON"),
        (base64.b64encode(b"[1]").decode(), r"must be an object with keys, got \[1\]"),
        (3, "is a `int`, but it must be a dict"),
    ],
)
def test_what_is_no_config_is_refused(given, message):
    with pytest.raises(ConfigError, match=message):
        HfDeepSpeedConfig(given)
