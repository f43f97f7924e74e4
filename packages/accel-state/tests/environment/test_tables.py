from __future__ import annotations

import pytest

from accel_state.environment import find_setting
from accel_state.environment.settings import SECTIONS


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("mixed_precision", "BF16", "bf16"),
        ("log_level", "info", "INFO"),
        ("gradient_accumulation_steps", "4", 4),
        ("gradient_accumulation_steps", "auto", None),
        ("downcast_bf16", "no", False),
        ("fsdp_version", "2", 2),
        ("fsdp_sharding_strategy", "1", "FULL_SHARD"),
        ("fsdp_sharding_strategy", "hybrid_shard_zero2", "HYBRID_SHARD_ZERO2"),
        ("fsdp_reshard_after_forward", "false", False),
        ("fsdp_reshard_after_forward", "SHARD_GRAD_OP", "SHARD_GRAD_OP"),
        ("fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "TRANSFORMER_BASED_WRAP"),
        ("fsdp_state_dict_type", "3", "SHARDED_STATE_DICT"),
        ("fsdp_transformer_layer_cls_to_wrap", "BertLayer,BertEmbeddings", ("BertLayer", "BertEmbeddings")),
        ("deepspeed_zero_stage", "3", 3),
        ("deepspeed_offload_param_device", "NVME", "nvme"),
        ("deepspeed_offload_param_nvme_path", "none", None),
        ("gradient_clipping", "1.0", 1.0),
        ("gradient_clipping", "none", None),
        ("dynamo_backend", "inductor", "INDUCTOR"),
        ("dynamo_mode", "max-autotune", "max-autotune"),
        ("fp8_backend", "te", "TE"),
        ("fp8_opt_level", "o2", "O2"),
        ("parallelism_dp_shard_size", "8", 8),
        ("master_port", "29500", 29500),
        ("xla_use_bf16", "1", True),
    ],
)
def test_text_as_users_write_it_becomes_the_value_the_code_wants(name, text, value):
    assert find_setting(name).value_of(text) == value


@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("mixed_precision", "no"),
        ("use_cpu", False),
        ("fsdp_version", 1),
        ("fsdp_sharding_strategy", "FULL_SHARD"),
        ("deepspeed_zero_stage", 2),
        ("gradient_accumulation_steps", None),
        ("dynamo_backend", "NO"),
        ("parallelism_tp_size", 1),
        ("config_ds_fields", ()),
    ],
)
def test_what_is_unset_has_the_documented_default(name, default):
    assert find_setting(name).value_of(None) == default


@pytest.mark.parametrize(
    ("flag", "config_key", "variable"),
    [
        ("--mixed_precision", "mixed_precision", "ACCELERATE_MIXED_PRECISION"),
        ("--cpu", "use_cpu", "ACCELERATE_USE_CPU"),
        ("--main_process_ip", "main_process_ip", "MASTER_ADDR"),
        ("--zero_stage", "deepspeed_config.zero_stage", "ACCELERATE_DEEPSPEED_ZERO_STAGE"),
        ("--zero3_init_flag", "deepspeed_config.zero3_init_flag", "ACCELERATE_DEEPSPEED_ZERO3_INIT"),
        ("--fsdp_offload_params", "fsdp_config.fsdp_offload_params", "FSDP_OFFLOAD_PARAMS"),
        (
            "--fsdp_transformer_layer_cls_to_wrap",
            "fsdp_config.fsdp_transformer_layer_cls_to_wrap",
            "FSDP_TRANSFORMER_CLS_TO_WRAP",
        ),
        (
            "--fsdp_backward_prefetch_policy",
            "fsdp_config.fsdp_backward_prefetch_policy",
            "FSDP_BACKWARD_PREFETCH",
        ),
        ("--fp8_backend", "fp8_config.backend", "ACCELERATE_FP8_BACKEND"),
        ("--megatron_lm_tp_degree", "megatron_lm_config.megatron_lm_tp_degree", "MEGATRON_LM_TP_DEGREE"),
    ],
)
def test_flag_config_key_and_variable_are_the_documented_ones(flag, config_key, variable):
    lines = {found.flag: found for section in SECTIONS.values() for found in section}
    assert (lines[flag].config_key, lines[flag].variable) == (config_key, variable)
