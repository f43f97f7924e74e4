import inspect

import pytest

from accel_backends import MegatronLMPlugin
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from accel_state.topology import Topology


def test_variables_fill_what_is_not_given(monkeypatch):
    monkeypatch.setenv("MEGATRON_LM_TP_DEGREE", "4")
    monkeypatch.setenv("MEGATRON_LM_RECOMPUTE_ACTIVATIONS", "true")
    monkeypatch.setenv("MEGATRON_LM_GRADIENT_CLIPPING", "0.5")
    plugin = MegatronLMPlugin(gradient_clipping=2)
    assert (plugin.tp_degree, plugin.pp_degree, plugin.num_micro_batches) == (4, 1, 1)
    assert (plugin.recompute_activations, plugin.gradient_clipping) == (True, 2.0)


def test_the_defaults_are_the_documented_ones():
    parameters = inspect.signature(MegatronLMPlugin).parameters
    documented = {
        "is_train_batch_min": True, "weight_decay_incr_style": "constant", "lr_decay_style": "linear", "min_lr": 0,
        "lr_mult": 1.0, "megatron_dataset_flag": False, "set_all_logging_options": False, "eval_iters": 100,
        "eval_interval": 1000, "return_logits": False,
    }  # fmt: skip
    assert {name: one.default for name, one in parameters.items() if one.default is not None} == documented


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tp_degree": 0}, "`tp_degree` is `0`"),
        ({"recompute_granularity": "some"}, "`recompute_granularity` is `some`"),
        ({"use_custom_fsdp": True}, "`use_custom_fsdp`.* not offered"),
        ({"tensorboard_dir": "logs"}, "log_with"),
        ({"train_iters": 1, "train_samples": 2}, "say the same thing"),
        ({"eval_iters": 0}, "`eval_iters` must be a whole number"),
        ({"gradient_clipping": -1}, "0 \\(off\\) or more"),
        ({"recompute_activations": True, "recompute_granularity": "full"}, "Leave the first out"),
        ({"recompute_method": "block"}, "Set that to `full`"),
        ({"use_precision_aware_optimizer": True}, "Set `use_distributed_optimizer`"),
        ({"overlap_cpu_optimizer_d2h_h2d": True}, "`optimizer_cpu_offload`"),
        ({"other_megatron_args": ["a"]}, "must be a dict"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        MegatronLMPlugin(**arguments)


def test_the_layout_has_stages_outside_and_layers_inside():
    plugin = MegatronLMPlugin(tp_degree=2, pp_degree=2)
    layout = plugin.default_layout(Topology(world_size=16))
    assert (layout.tp, layout.pp, layout.num_data_ranks) == (2, 2, 4)
    with pytest.raises(ConfigError, match="does not divide the 6 processes"):
        plugin.default_layout(Topology(world_size=6))


def test_a_layout_that_contradicts_the_plugin_is_refused():
    with pytest.raises(ConfigError, match="`tp_degree` of the MegatronLMPlugin is 2"):
        MegatronLMPlugin(tp_degree=2).settle_layout(MeshLayout(tp=4))
    with pytest.raises(ConfigError, match="4 ranks of a stage"):
        MegatronLMPlugin(expert_model_parallel_size=3).settle_layout(MeshLayout(dp_shard=4))


def test_a_layout_names_what_the_plugin_does_not():
    plugin = MegatronLMPlugin(num_micro_batches=3)
    plugin.settle_layout(MeshLayout(dp_shard=2, tp=4))
    plugin.micro_batch_size = 5
    assert (plugin.tp_degree, plugin.global_batch_size) == (4, 30)
