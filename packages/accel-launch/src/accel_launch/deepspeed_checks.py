"""Settings of DeepSpeed that contradict each other, and which of them the launcher's config file says."""

from __future__ import annotations

from collections.abc import Mapping

from accel_launch.resolution import Resolved
from accel_state.environment import SETTINGS
from accel_state.errors import ConfigError

# What a DeepSpeed config of its own says too.
_SAID_BY_CONFIG = (
    "gradient_accumulation_steps",
    "gradient_clipping",
    "deepspeed_zero_stage",
    "deepspeed_offload_optimizer_device",
    "deepspeed_offload_optimizer_nvme_path",
    "deepspeed_offload_param_device",
    "deepspeed_offload_param_nvme_path",
    "deepspeed_zero3_save_16bit_model",
)


def check_deepspeed(settings: Mapping[str, Resolved]) -> None:
    """Refuse settings of DeepSpeed that contradict each other.

    Raises:
        ConfigError: Naming them.
    """
    if settings["deepspeed_config_file"].value is not None:
        _check_beside_config(settings)
    else:
        _check_offload(settings)


def fields_of_config_file(settings: Mapping[str, Resolved]) -> tuple[str, ...]:
    """Return the keys of ``deepspeed_config`` in the launcher's config file that a DeepSpeed config says too."""
    return tuple(
        (SETTINGS[name].config_key or "").removeprefix("deepspeed_config.")
        for name in _SAID_BY_CONFIG
        if settings[name].source == "config file" and settings[name].value not in (None, "none")
    )


def _check_beside_config(settings: Mapping[str, Resolved]) -> None:
    """Refuse a config file of the launcher that says what the DeepSpeed config says; flags fill its ``auto``."""
    fields = fields_of_config_file(settings)
    if fields:
        raise ConfigError(
            f"When using `deepspeed_config_file`, the config file of the launcher must not say what the DeepSpeed "
            f"config says: {', '.join(f'`{field}`' for field in fields)}. Take them out there and write them in "
            f"`{settings['deepspeed_config_file'].value}`, or answer `accel config` anew."
        )


def _check_offload(settings: Mapping[str, Resolved]) -> None:
    stage = settings["deepspeed_zero_stage"].value
    for name in ("optimizer", "param"):
        device = settings[f"deepspeed_offload_{name}_device"].value
        least = 1 if (name, device) == ("optimizer", "cpu") else 3
        if device != "none" and stage < least:
            raise ConfigError(
                f"`offload_{name}_device` is `{device}`, which has no effect with `zero_stage` {stage}: it needs stage "
                f"{least} or higher. Set the stage, or leave the device out."
            )
        if device == "nvme" and settings[f"deepspeed_offload_{name}_nvme_path"].value is None:
            raise ConfigError(
                f"`offload_{name}_device` is `nvme`, but `offload_{name}_nvme_path` names no folder. Name one."
            )
