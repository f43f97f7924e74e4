from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import T5Config

from accel_backends import (
    MODEL_CONFIGS_TO_MEGATRON_PARSERS,
    MegatronLMPlugin,
    add_model_config_to_megatron_parser,
)
from accel_backends.plugins.megatron_parsers import optimizer_settings
from accel_state.errors import ConfigError


def model_of(**config):
    return with_config(SimpleNamespace(**config))


def with_config(config):
    model = nn.Linear(1, 1)
    model.config = config
    return model


def test_a_parser_can_be_added(monkeypatch):
    monkeypatch.setattr("accel_backends.plugins.megatron_parsers.MODEL_CONFIGS_TO_MEGATRON_PARSERS", {})
    plugin = MegatronLMPlugin()

    @add_model_config_to_megatron_parser("mine")
    def parse(megatron_lm_plugin, model, batch_data):
        megatron_lm_plugin.megatron_lm_default_args["num_layers"] = model.config.depth

    plugin.set_network_size_args(model_of(model_type="mine", depth=3))
    assert plugin.megatron_lm_default_args == {"num_layers": 3}


def test_the_documented_models_have_parsers():
    assert set(MODEL_CONFIGS_TO_MEGATRON_PARSERS) >= {"megatron-bert", "gpt2", "t5", "llama", "glm4_moe"}


def test_a_model_that_no_parser_reads_is_refused():
    with pytest.raises(ConfigError, match="`opt`"):
        MegatronLMPlugin().set_network_size_args(model_of(model_type="opt"))
    with pytest.raises(ConfigError, match="no `config.model_type`"):
        MegatronLMPlugin().set_network_size_args(nn.Linear(1, 1))


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
    plugin.set_network_size_args(with_config(T5Config(feed_forward_proj=projection)))
    found = plugin.megatron_lm_default_args
    names = ("activation_func", "gated_linear_unit", "bias_activation_fusion")
    assert {name: found[name] for name in names if name in found} == arguments


def test_a_t5_with_another_activation_is_refused():
    model = with_config(T5Config(feed_forward_proj="gated-silu"))
    with pytest.raises(
        ConfigError, match="`silu`, but here Megatron-LM has `gelu`, `gelu_new` and `relu`. Use"
    ):
        MegatronLMPlugin().set_network_size_args(model)


def test_an_optimizer_is_read_by_its_settings():
    parameter = torch.nn.Parameter(torch.ones(1))
    found = optimizer_settings(torch.optim.AdamW([parameter], lr=0.1, weight_decay=0.2, betas=(0.5, 0.6)))
    assert found["lr"] == 0.1
    assert (found["weight_decay"], found["adam_beta1"], found["adam_beta2"]) == (0.2, 0.5, 0.6)
    with pytest.raises(ConfigError, match="different learning rates"):
        optimizer_settings(
            torch.optim.SGD(
                [{"params": [parameter], "lr": 1.0}, {"params": [torch.nn.Parameter(parameter)]}], lr=0.1
            )
        )


def test_the_methods_of_the_plugin_fill_its_arguments():
    plugin = MegatronLMPlugin(num_micro_batches=2)
    plugin.set_training_args(4, 2)
    plugin.set_mixed_precision("bf16")
    plugin.set_optimizer_type(torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.2, momentum=0.7))
    assert plugin.megatron_lm_default_args == {
        "data_parallel_size": 2,
        "micro_batch_size": 4,
        "global_batch_size": 16,
        "bf16": True,
        "optimizer": "sgd",
        "lr": 0.2,
        "weight_decay": 0.0,
        "sgd_momentum": 0.7,
    }
    assert plugin.global_batch_size == 16
