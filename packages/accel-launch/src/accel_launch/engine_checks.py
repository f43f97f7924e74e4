"""Checks of an engine's settings together, and the defaults that the launcher passes to the ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_launch.resolution import Resolved
from accel_state.environment import SETTINGS
from accel_state.errors import ConfigError
from accel_state.fsdp_versions import resharding_of, state_dict_type_of, strategy_of

# Settings that a DeepSpeed config file has, too.
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
    """Return the keys of ``deepspeed_config`` in the launcher's config file that a DeepSpeed config has, too."""
    return tuple(
        (SETTINGS[name].config_key or "").removeprefix("deepspeed_config.")
        for name in _SAID_BY_CONFIG
        if settings[name].source == "config file" and settings[name].value not in (None, "none")
    )


def _check_beside_config(settings: Mapping[str, Resolved]) -> None:
    """Refuse a launcher's config file with settings of the DeepSpeed config; flags fill its ``auto``."""
    fields = fields_of_config_file(settings)
    if fields:
        raise ConfigError(
            f"When using `deepspeed_config_file`, the config file of the launcher must not say what the DeepSpeed "
            f"config says: {', '.join(f'`{field}`' for field in fields)}. Take them out there and write them in "
            f"`{settings['deepspeed_config_file'].value}`, or run `accel config` again."
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


def check_fsdp(settings: Mapping[str, Resolved]) -> None:
    """Refuse settings of FSDP that contradict each other or its version.

    Raises:
        ConfigError: Naming them.
    """
    given = {
        name.removeprefix("fsdp_"): found.value
        for name, found in settings.items()
        if name.startswith("fsdp_") and found.source != "default"
    }
    version = settings["fsdp_version"].value
    decide = strategy_of if version == 1 else resharding_of
    decide(given.get("sharding_strategy"), given.get("reshard_after_forward"), is_from_launcher=True)
    state_dict_type_of(version, given.get("state_dict_type"))
    _check_units(given)
    if given.get("activation_checkpointing_offload") and not given.get("activation_checkpointing"):
        raise ConfigError(
            "`fsdp_activation_checkpointing_offload` has no effect without `fsdp_activation_checkpointing`. Set both."
        )


def _check_units(given: Mapping[str, Any]) -> None:
    policy = given.get("auto_wrap_policy")
    if given.get("transformer_layer_cls_to_wrap") and policy != "TRANSFORMER_BASED_WRAP":
        raise ConfigError(
            "`fsdp_transformer_layer_cls_to_wrap` has no effect unless `fsdp_auto_wrap_policy` is "
            "`TRANSFORMER_BASED_WRAP`. Set that policy, or leave the classes out."
        )
    if policy == "SIZE_BASED_WRAP" and given.get("min_num_params") == 0:
        raise ConfigError("`fsdp_min_num_params` must be at least 1 with `SIZE_BASED_WRAP`, got 0.")


_ALWAYS: Mapping[str, Any] = {
    "fsdp_offload_params": False,
    "fsdp_activation_checkpointing": False,
    "fsdp_min_num_params": 100_000_000,
    "fsdp_cpu_ram_efficient_loading": True,
}
_OF_VERSION: Mapping[int, Mapping[str, Any]] = {
    1: {
        "fsdp_sharding_strategy": "FULL_SHARD",
        "fsdp_forward_prefetch": False,
        "fsdp_use_orig_params": True,
        "fsdp_sync_module_states": True,
    },
    2: {"fsdp_reshard_after_forward": True, "fsdp_activation_checkpointing_offload": False},
}
_TWO_NAMES = ("fsdp_sharding_strategy", "fsdp_reshard_after_forward")


def fsdp_defaults(settings: Mapping[str, Resolved]) -> dict[str, Any]:
    """Return the defaults of settings that were not given, unless one would contradict a given setting."""
    version = settings["fsdp_version"].value
    given = {name for name, found in settings.items() if found.source != "default"}
    if not given.isdisjoint(_TWO_NAMES):
        given.update(_TWO_NAMES)
    if not settings["fsdp_sync_module_states"].value and "fsdp_sync_module_states" in given:
        given.add("fsdp_cpu_ram_efficient_loading")  # the weights of rank 0 would stay there
    defaults = {"fsdp_version": version, **_ALWAYS, **_OF_VERSION[version]}
    return {name: value for name, value in defaults.items() if name not in given}
