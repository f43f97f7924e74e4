from types import SimpleNamespace

import pytest
from torch import nn

from accel_backends import (
    MODEL_CONFIGS_TO_MEGATRON_PARSERS,
    MegatronLMPlugin,
    add_model_config_to_megatron_parser,
)
from accel_backends.strategies.megatron.parsers import parse_model
from accel_state.errors import ConfigError


def model_of(**config):
    model = nn.Linear(1, 1)
    model.config = SimpleNamespace(**config)
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
