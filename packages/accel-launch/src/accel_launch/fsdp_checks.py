"""Settings of FSDP that no run can be built from: they are refused before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_launch.resolution import Resolved
from accel_state.errors import ConfigError
from accel_state.fsdp_versions import resharding_of, state_dict_type_of, strategy_of


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
    _check_offload_of_checkpointing(version, given)


def _check_units(given: Mapping[str, Any]) -> None:
    policy = given.get("auto_wrap_policy")
    if given.get("transformer_layer_cls_to_wrap") and policy != "TRANSFORMER_BASED_WRAP":
        raise ConfigError(
            "`fsdp_transformer_layer_cls_to_wrap` has no effect unless `fsdp_auto_wrap_policy` is "
            "`TRANSFORMER_BASED_WRAP`. Set that policy, or leave the classes out."
        )
    if policy == "SIZE_BASED_WRAP" and given.get("min_num_params") == 0:
        raise ConfigError("`fsdp_min_num_params` must be at least 1 with `SIZE_BASED_WRAP`, got 0.")


def _check_offload_of_checkpointing(version: int, given: Mapping[str, Any]) -> None:
    if not given.get("activation_checkpointing_offload"):
        return
    if version == 1:
        raise ConfigError(
            "`fsdp_activation_checkpointing_offload` is for `fsdp_version` 2. Set the version, or leave it out."
        )
    if not given.get("activation_checkpointing"):
        raise ConfigError(
            "`fsdp_activation_checkpointing_offload` has no effect without `fsdp_activation_checkpointing`. Set both."
        )
