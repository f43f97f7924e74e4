from types import SimpleNamespace

import pytest
from torch import nn
from transformers import T5Config

from accel_backends import (
    MODEL_CONFIGS_TO_MEGATRON_PARSERS,
    MegatronLMPlugin,
    add_model_config_to_megatron_parser,
)
from accel_backends.strategies.megatron.parsers import parse_model
from accel_state.errors import ConfigError


def model_of(**config):
    return with_config(SimpleNamespace(**config))


def with_config(config):
    model = nn.Linear(1, 1)
    model.config = config
    return model


def test_a_parser_can_be_added(monkeypatch):
    monkeypatch.setattr("accel_backends.strategies.megatron.parsers.MODEL_CONFIGS_TO_MEGATRON_PARSERS", {})
    plugin = MegatronLMPlugin()

    @add_model_config_to_megatron_parser("mine")
    def parse(megatron_lm_plugin, model, batch_data):
        megatron_lm_plugin.megatron_lm_default_args["num_layers"] = model.config.depth

    parse_model(plugin, model_of(model_type="mine", depth=3))
    assert plugin.megatron_lm_default_args == {"num_layers": 3}


def test_the_documented_models_have_parsers():
    assert set(MODEL_CONFIGS_TO_MEGATRON_PARSERS) >= {"megatron-bert", "gpt2", "t5", "llama", "glm4_moe"}


def test_a_model_that_nobody_parses_is_refused():
    with pytest.raises(ConfigError, match="`opt`"):
        parse_model(MegatronLMPlugin(), model_of(model_type="opt"))
    with pytest.raises(ConfigError, match="no `config.model_type`"):
        parse_model(MegatronLMPlugin(), nn.Linear(1, 1))


@pytest.mark.parametrize(
    ("projection", "arguments"),
    [
        ("relu", {"activation_func": nn.functional.relu, "bias_activation_fusion": False}),
        ("gated-gelu", {"gated_linear_unit": True, "bias_activation_fusion": True}),
        ("gelu", {"bias_activation_fusion": False}),
    ],
)
def test_a_t5_has_the_activation_of_its_config(projection, arguments):
    plugin = MegatronLMPlugin()
    parse_model(plugin, with_config(T5Config(feed_forward_proj=projection)))
    found = plugin.megatron_lm_default_args
    names = ("activation_func", "gated_linear_unit", "bias_activation_fusion")
    assert {name: found[name] for name in names if name in found} == arguments


def test_a_t5_with_another_activation_is_refused():
    model = with_config(T5Config(feed_forward_proj="gated-silu"))
    with pytest.raises(
        ConfigError, match="`silu`, but here Megatron-LM has `gelu`, `gelu_new` and `relu`. Use"
    ):
        parse_model(MegatronLMPlugin(), model)
