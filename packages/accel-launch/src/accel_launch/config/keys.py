"""Every key that a config file may have, with the values that ask for nothing.

The names are those that the questionnaire of Accelerate writes, so that its files load unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from accel_launch.options import OPTIONS
from accel_launch.parsers import assignments
from accel_state.environment.parsers import names

# Values by which a file says "not used"; they are accepted for every key.
INERT_VALUES: tuple[Any, ...] = (None, False, "no", "NO", "", "none", [], {})

# Other spellings, and what they are called here.
ALIASES: Mapping[str, str] = MappingProxyType(
    {
        "dynamo_backend": "dynamo_config.dynamo_backend",
        "env": "tpu_env",
        "fsdp_config.fsdp_backward_prefetch": "fsdp_config.fsdp_backward_prefetch_policy",
    }
)
_OF_SETTINGS = {setting.config_key: setting for setting in OPTIONS if setting.config_key}
# Beside them, keys that are no setting of a launch.
_KEYS = {*_OF_SETTINGS, *ALIASES} | {
    "additional_args",
    "command_file",
    "commands",
    "compute_environment",
    "distributed_type",
    "fp16",
}
# Values that leave the choice to the next in line.
_UNSET_VALUES: Mapping[str, tuple[Any, ...]] = MappingProxyType(
    {"compute_environment": ("LOCAL_MACHINE",)}
    | {key: setting.unset_values for key, setting in _OF_SETTINGS.items()}
)

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
_LISTS = {"commands", "fp8_config.override_linear_precision"} | {
    key for key, setting in _OF_SETTINGS.items() if setting.parse in (names, assignments)
}
LIST_KEYS = frozenset(_LISTS | {alias for alias, key in ALIASES.items() if key in _LISTS})
MAPPING_KEYS = frozenset({"additional_args"})


def is_unset(key: str, value: Any) -> bool:
    """Tell whether a key with this value leaves the choice to the next in line, as if it were not there."""
    return value is None or _is_one_of(value, PLAIN_KEYS.get(key, ()))


def is_inert(key: str, value: Any) -> bool:
    """Tell whether a key with this value asks for nothing."""
    return is_unset(key, value) or _is_one_of(value, INERT_VALUES)


def _is_one_of(value: Any, candidates: Iterable[Any]) -> bool:
    # `0 == False`, yet a rank of 0 and a switch that is off are different things: compare the types too.
    return any(value == candidate and type(value) is type(candidate) for candidate in candidates)
