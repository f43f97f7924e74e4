import pytest

from accel_state.errors import ConfigError

FILE = {"deepspeed_config.deepspeed_config_file": "ds.json", "deepspeed_config.zero3_init_flag": True}


def deepspeed(config):
    return {"distributed_type": "DEEPSPEED", **config}


def test_a_config_file_that_says_what_the_deepspeed_config_says_is_refused(request_for):
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


def test_flags_fill_the_deepspeed_config_and_precision_stands_beside_it(request_for):
    flags = {"deepspeed_zero_stage": "3", "deepspeed_offload_param_device": "cpu"}
    environ = request_for(config=deepspeed({**FILE, "mixed_precision": "fp16"}), flags=flags).environ()
    assert environ["ACCELERATE_DEEPSPEED_ZERO_STAGE"] == "3"
    assert environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] == "ds.json"
    assert "ACCELERATE_CONFIG_DS_FIELDS" not in environ


def test_ranks_are_told_which_keys_the_config_file_says(request_for):
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
