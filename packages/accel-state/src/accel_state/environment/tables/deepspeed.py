"""Settings of DeepSpeed."""

from __future__ import annotations

from accel_state.environment.parsers import boolean, choice, digit, names, number, text, unless
from accel_state.environment.setting import Setting

TITLE = "DeepSpeed"

_DEVICES = choice("none", "cpu", "nvme")

SETTINGS = (
    Setting(
        "use_deepspeed",
        "ACCELERATE_USE_DEEPSPEED",
        boolean,
        False,
        "Train with DeepSpeed.",
        flag="--use_deepspeed",
    ),
    Setting(
        "deepspeed_config_file",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE",
        unless("none", text, None),
        None,
        "DeepSpeed's own JSON config, used as it is.",
        flag="--deepspeed_config_file",
        config_key="deepspeed_config.deepspeed_config_file",
    ),
    Setting(
        "deepspeed_zero_stage",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE",
        digit(0, 1, 2, 3),
        2,
        "What ZeRO shards: nothing (0), optimizer states (1), gradients too (2), parameters too (3).",
        flag="--zero_stage",
        config_key="deepspeed_config.zero_stage",
    ),
    Setting(
        "gradient_clipping",
        "ACCELERATE_GRADIENT_CLIPPING",
        unless("none", number, None),
        None,
        "Norm that gradients are clipped to by the engine.",
        flag="--gradient_clipping",
        config_key="deepspeed_config.gradient_clipping",
    ),
    Setting(
        "deepspeed_offload_optimizer_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
        _DEVICES,
        "none",
        "Where optimizer states are kept (ZeRO 2 and 3).",
        flag="--offload_optimizer_device",
        config_key="deepspeed_config.offload_optimizer_device",
    ),
    Setting(
        "deepspeed_offload_optimizer_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
        unless("none", text, None),
        None,
        "Folder for optimizer states on NVMe.",
        flag="--offload_optimizer_nvme_path",
        config_key="deepspeed_config.offload_optimizer_nvme_path",
    ),
    Setting(
        "deepspeed_offload_param_device",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
        _DEVICES,
        "none",
        "Where parameters are kept (ZeRO 3).",
        flag="--offload_param_device",
        config_key="deepspeed_config.offload_param_device",
    ),
    Setting(
        "deepspeed_offload_param_nvme_path",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
        unless("none", text, None),
        None,
        "Folder for parameters on NVMe.",
        flag="--offload_param_nvme_path",
        config_key="deepspeed_config.offload_param_nvme_path",
    ),
    Setting(
        "deepspeed_zero3_init",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT",
        boolean,
        None,
        "Build models sharded from the start with `deepspeed.zero.Init` (ZeRO 3).",
        flag="--zero3_init_flag",
        config_key="deepspeed_config.zero3_init_flag",
    ),
    Setting(
        "deepspeed_zero3_save_16bit_model",
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
        boolean,
        False,
        "Gather the 16-bit weights when the model is saved (ZeRO 3).",
        flag="--zero3_save_16bit_model",
        config_key="deepspeed_config.zero3_save_16bit_model",
    ),
    Setting(
        "deepspeed_moe_layer_cls_names",
        "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
        names,
        None,
        "Classes of mixture-of-experts layers, such as `MixtralSparseMoeBlock`, that ZeRO 3 keeps whole.",
        flag="--deepspeed_moe_layer_cls_names",
        config_key="deepspeed_config.deepspeed_moe_layer_cls_names",
    ),
    Setting(
        "config_ds_fields",
        "ACCELERATE_CONFIG_DS_FIELDS",
        names,
        (),
        "Keys of the config file that a DeepSpeed config must not set a second time; set by the launcher.",
    ),
)
