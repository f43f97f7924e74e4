"""Every key that a config file may have, with the values that ask for nothing.

The names are those that the questionnaire of Accelerate writes, so that its files load unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from accel_launch.options import OPTIONS
from accel_launch.tables.tpu import assignments
from accel_state.environment.parsers import names

# Values by which a file says "not used"; they are accepted for every key.
INERT_VALUES: tuple[Any, ...] = (None, False, "no", "NO", "", "none", [], {})

# Values of keys outside sections that leave the choice to the next in line.
_UNSET_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {
        "compute_environment": ("LOCAL_MACHINE",),
        "gpu_ids": ("all",),
        "machine_rank": (0,),
        "main_training_function": ("main",),
        "num_machines": (1,),
        "num_processes": (-1,),
        "rdzv_backend": ("static",),
        "same_network": (True,),
    }
)
# Keys that are no setting of a launch, or an older spelling of one.
_FURTHER_KEYS = """
    additional_args command_file commands compute_environment distributed_type dynamo_backend fp16
    fsdp_config.fsdp_backward_prefetch
"""
_LISTS = (names, assignments)
_KEYS = {setting.config_key for setting in OPTIONS if setting.config_key} | set(_FURTHER_KEYS.split())

# Keys outside sections, with further values that ask for nothing as long as one machine is used.
PLAIN_KEYS: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {key: _UNSET_VALUES.get(key, ()) for key in sorted(_KEYS) if "." not in key}
)

# The keys of each section.
SECTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        section: frozenset(key.partition(".")[2] for key in _KEYS if key.startswith(f"{section}."))
        for section in sorted({key.partition(".")[0] for key in _KEYS if "." in key})
    }
)

# Keys whose value may be a list, and those whose value may hold keys of its own.
LIST_KEYS = frozenset(
    {"commands", "fp8_config.override_linear_precision"}
    | {setting.config_key for setting in OPTIONS if setting.config_key and setting.parse in _LISTS}
)
MAPPING_KEYS = frozenset({"additional_args"})

# Other spellings, and what they are called here.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "dynamo_backend": "dynamo_config.dynamo_backend",
        "fsdp_config.fsdp_backward_prefetch": "fsdp_config.fsdp_backward_prefetch_policy",
    }
)


def is_unset(key: str, value: Any) -> bool:
    """Tell whether a key with this value leaves the choice to the next in line, as if it were not there."""
    return value is None or _is_one_of(value, PLAIN_KEYS.get(key, ()))


def is_inert(key: str, value: Any) -> bool:
    """Tell whether a key with this value asks for nothing."""
    return is_unset(key, value) or _is_one_of(value, INERT_VALUES)


def _is_one_of(value: Any, candidates: Iterable[Any]) -> bool:
    # `0 == False`, yet a rank of 0 and a switch that is off are different things: compare the types too.
    return any(value == candidate and type(value) is type(candidate) for candidate in candidates)
