"""The keys of a config file: which there are, what older ones are called now, what each may hold."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
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
        "fp8_config.amax_compute_algo": "fp8_config.amax_compute_algorithm",
        "fp8_config.amax_history_len": "fp8_config.amax_history_length",
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
    | {key: setting.launch.unset_values for key, setting in _OF_SETTINGS.items()}
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


# Far more than any real file; a YAML file of a few lines can stand for billions of values through its aliases.
_MOST_VALUES = 10_000


def problem_of(key: str, value: Any) -> str | None:
    """Say what is wrong with the kind of a key's value, None if nothing is.

    Only the kind is looked at: a scalar, a list of them for keys that hold several, a mapping for those that hold
    one. Whether the value itself makes sense is for the setting to say.
    """
    if isinstance(value, dict) and value and key not in MAPPING_KEYS:
        return "it must be a single value, but it holds keys of its own"
    if isinstance(value, list) and value and key not in LIST_KEYS:
        return "it must be a single value, but it holds a list"
    for place, leaf in enumerate(_leaves(value)):
        if place == _MOST_VALUES:
            return f"it holds more than {_MOST_VALUES} values"
        problem = _problem_of_leaf(leaf)
        if problem:
            return problem
    return None


def _leaves(value: Any) -> Iterator[Any]:
    waiting = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            waiting += [*current.keys(), *current.values()]
            yield None
        elif isinstance(current, list):
            waiting += current
            yield None
        else:
            yield current


def _problem_of_leaf(leaf: Any) -> str | None:
    if leaf is None or isinstance(leaf, (bool, int, float)):
        return None
    if not isinstance(leaf, str):
        return f"it must be text or a number, but it is read as a {type(leaf).__name__}; put it in quotes"
    try:
        is_fit = b"\0" not in os.fsencode(leaf)
    except UnicodeEncodeError:
        is_fit = False
    return None if is_fit else "it holds a character that no command line or variable can carry"
