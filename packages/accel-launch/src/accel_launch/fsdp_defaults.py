"""What a launch with FSDP says unasked, as Accelerate's does: libraries that read the variables count on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_launch.resolution import Resolved

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
    """Return the values of settings that nobody gave, but for those that would contradict one that was given."""
    version = settings["fsdp_version"].value
    given = {name for name, found in settings.items() if found.source != "default"}
    if not given.isdisjoint(_TWO_NAMES):
        given.update(_TWO_NAMES)
    if not settings["fsdp_sync_module_states"].value and "fsdp_sync_module_states" in given:
        given.add("fsdp_cpu_ram_efficient_loading")  # the weights of rank 0 would stay there
    defaults = {"fsdp_version": version, **_ALWAYS, **_OF_VERSION[version]}
    return {name: value for name, value in defaults.items() if name not in given}
