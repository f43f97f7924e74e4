from __future__ import annotations

import pytest

from accel_state.errors import ConfigError

FILE = {"deepspeed_config.deepspeed_config_file": "ds.json", "deepspeed_config.zero3_init_flag": True}


def deepspeed(config):
    return {"distributed_type": "DEEPSPEED", **config}


def test_a_config_file_that_repeats_the_deepspeed_config_is_refused(request_for):
    doubled = {
        "deepspeed_config.gradient_accumulation_steps": 1,
        "deepspeed_config.zero_stage": 3,
        "deepspeed_config.offload_param_device": "none",
        "deepspeed_config.zero3_save_16bit_model": True,
    }
    with pytest.raises(
        ConfigError, match="`gradient_accumulation_steps`, `zero_stage`, `zero3_save_16bit_model`. Take"
    ):
        request_for(config=deepspeed({**FILE, **doubled}))


def test_flags_fill_the_deepspeed_config_and_precision_is_next_to_it(request_for):
    flags = {"deepspeed_zero_stage": "3", "deepspeed_offload_param_device": "cpu"}
    environ = request_for(config=deepspeed({**FILE, "mixed_precision": "fp16"}), flags=flags).environ()
    assert environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "ds.json"
    assert "ACCELERATE_CONFIG_DS_FIELDS" not in environ


def test_ranks_know_which_keys_the_config_file_sets(request_for):
    config = deepspeed(
        {
            "deepspeed_config.zero_stage": 2,
            "deepspeed_config.gradient_clipping": 1.0,
            "deepspeed_config.gradient_accumulation_steps": "auto",
            "deepspeed_config.offload_param_device": "none",
            "deepspeed_config.zero3_init_flag": True,
        }
    )
    environ = request_for(config=config).environ()
    assert environ["ACCELERATE_CONFIG_DS_FIELDS"] == "gradient_clipping,zero_stage"
    assert (
        "ACCELERATE_CONFIG_DS_FIELDS"
        not in request_for(config={**config, "distributed_type": "FSDP"}).environ()
    )


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"deepspeed_offload_param_device": "cpu"}, "no effect with `zero_stage` 2: it needs stage 3"),
        ({"deepspeed_offload_optimizer_device": "nvme"}, "no effect with `zero_stage` 2: it needs stage 3"),
        (
            {"deepspeed_zero_stage": "0", "deepspeed_offload_optimizer_device": "cpu"},
            "no effect with `zero_stage` 0: it needs stage 1",
        ),
        (
            {"deepspeed_zero_stage": "3", "deepspeed_offload_optimizer_device": "nvme"},
            "`offload_optimizer_nvme_path` names no folder",
        ),
    ],
)
def test_offloading_that_cannot_be_is_refused_before_the_launch(request_for, flags, message):
    with pytest.raises(ConfigError, match=message):
        request_for(flags={"use_deepspeed": "true", **flags})
    request_for(flags={"use_deepspeed": "true", "deepspeed_config_file": "ds.json", **flags})


V1 = {"use_fsdp": "true"}
V2 = {"use_fsdp": "true", "fsdp_version": "2"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (V2 | {"fsdp_sharding_strategy": "HYBRID_SHARD"}, "`dp_replicate_size` to the number of machines"),
        (V2 | {"fsdp_reshard_after_forward": "NO_SHARD"}, "always shards"),
        (V2 | {"fsdp_state_dict_type": "LOCAL_STATE_DICT"}, "`SHARDED_STATE_DICT` or `FULL_STATE_DICT`"),
        (V1 | {"fsdp_reshard_after_forward": "false"}, "is False, which is for `fsdp_version=2`"),
        (
            V1 | {"fsdp_sharding_strategy": "NO_SHARD", "fsdp_reshard_after_forward": "FULL_SHARD"},
            "are one setting",
        ),
        (V2 | {"fsdp_transformer_layer_cls_to_wrap": "Block"}, "`TRANSFORMER_BASED_WRAP`. Set that policy"),
        (
            V2 | {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": "0"},
            "must be at least 1 with `SIZE_BASED_WRAP`, got 0",
        ),
        (V1 | {"fsdp_state_dict_type": "LOCAL_STATE_DICT"}, "is not written any more"),
        (V2 | {"fsdp_activation_checkpointing_offload": "true"}, "without `fsdp_activation_checkpointing`"),
    ],
)
def test_what_no_run_can_be_built_from_is_refused(request_for, flags, message):
    with pytest.raises(ConfigError, match=message):
        request_for(flags=flags)


@pytest.mark.parametrize(
    "flags",
    [
        V1,
        V2,
        V1 | {"fsdp_reshard_after_forward": "SHARD_GRAD_OP", "fsdp_state_dict_type": "SHARDED_STATE_DICT"},
        V2 | {"fsdp_sharding_strategy": "SHARD_GRAD_OP"},
        V2 | {"fsdp_auto_wrap_policy": "1", "fsdp_transformer_layer_cls_to_wrap": "Block"},
        V2 | {"fsdp_activation_checkpointing": "true", "fsdp_activation_checkpointing_offload": "true"},
        V2 | {"fsdp_min_num_params": "0"},
    ],
)
def test_what_a_run_can_be_built_from_passes(request_for, flags):
    assert request_for(flags=flags).engine == "FSDP"


def test_a_config_file_is_checked_as_well(request_for):
    config = {"distributed_type": "FSDP", "fsdp_config.fsdp_version": 2}
    with pytest.raises(ConfigError, match="is not written any more"):
        request_for(config=config | {"fsdp_config.fsdp_state_dict_type": "LOCAL_STATE_DICT"})


def test_settings_of_an_engine_that_is_not_used_are_not_checked(request_for):
    assert request_for(flags={"fsdp_version": "2", "fsdp_sharding_strategy": "NO_SHARD"}).engine is None
