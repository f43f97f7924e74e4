"""What users may write for a field of the FSDP plugin, and the one value that it becomes."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    BackwardPrefetch,
    CPUOffload,
    CPUOffloadPolicy,
    MixedPrecision,
    MixedPrecisionPolicy,
    OffloadPolicy,
    ShardingStrategy,
    StateDictType,
)

from accel_state.environment import door, find_setting
from accel_state.errors import ConfigError, did_you_mean
from accel_state.sharding_strategies import reshards

_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_POLICIES: Mapping[int, type[Any]] = {1: MixedPrecision, 2: MixedPrecisionPolicy}
_OFFLOADS: Mapping[int, tuple[type[Any], ...]] = {1: (CPUOffload,), 2: (OffloadPolicy,)}


def word_of(field: str, value: object, *, setting: str | None = None) -> Any:
    """Return a value as the word that its setting has for it, such as ``FULL_SHARD`` for ``"1"``.

    Args:
        field: The field of the plugin, for messages.
        value: Text in any case, a number of the list, or a member of torch's enum.
        setting: The setting's name without ``fsdp_``, where that is not the field's.

    Raises:
        ConfigError: If the setting does not accept it.
    """
    text = getattr(value, "name", str(value)).removeprefix("_")
    return find_setting(f"fsdp_{setting or field}").value_of(text, source=field)


def accepted(setting: str) -> str:
    """Return what a setting accepts, as the end of a sentence."""
    return find_setting(f"fsdp_{setting}").parse.accepts


def read_if_set(setting: str) -> Any:
    """Return what the variable of a setting says, None where it is unset."""
    return door.read(f"fsdp_{setting}") if door.is_set(f"fsdp_{setting}") else None


def given_or_set(field: str, value: object) -> Any:
    """Return the word for a value, or for None what the variable says, None where it is unset."""
    return read_if_set(field) if value is None else word_of(field, value)


def strategy_of(sharding_strategy: object, reshard_after_forward: object) -> ShardingStrategy:
    """Return the sharding strategy of version 1, which may stand under either of its two names.

    Raises:
        ConfigError: If the two contradict each other, or one is no strategy.
    """
    old, new = _sharding_words(sharding_strategy, reshard_after_forward)
    is_of_environment = sharding_strategy is None and reshard_after_forward is None
    if is_of_environment and old is not None and isinstance(new, bool):
        new = None  # launchers set both variables, whichever version counts
    if is_of_environment and old == "FULL_SHARD" and new is not None:
        old = None
    if isinstance(new, bool):
        raise ConfigError(
            f"`reshard_after_forward` is {new}, which is for `fsdp_version=2`. With version 1 it must be "
            f"{accepted('sharding_strategy')}."
        )
    if None not in (old, new) and old != new:
        raise ConfigError(
            f"`sharding_strategy` (`{old}`) and `reshard_after_forward` (`{new}`) say the same thing. Pass one of them."
        )
    word = old or new or "FULL_SHARD"
    return ShardingStrategy[f"_{word}" if word == "HYBRID_SHARD_ZERO2" else word]


def resharding_of(sharding_strategy: object, reshard_after_forward: object) -> bool:
    """Return whether version 2 gives gathered parameters up after the forward pass.

    Raises:
        ConfigError: If the two contradict each other, or version 2 has no such strategy.
    """
    old, new = _sharding_words(sharding_strategy, reshard_after_forward)
    if sharding_strategy is None and new is not None:
        old = None
    asked = {word if isinstance(word, bool) else reshards(word) for word in (old, new) if word is not None}
    if len(asked) > 1:
        raise ConfigError(
            f"`sharding_strategy` (`{old}`) and `reshard_after_forward` ({new}) contradict each other. "
            "Pass the second alone."
        )
    return asked.pop() if asked else True


def _sharding_words(sharding_strategy: object, reshard_after_forward: object) -> tuple[Any, Any]:
    if sharding_strategy is None and reshard_after_forward is None:
        return read_if_set("sharding_strategy"), read_if_set("reshard_after_forward")
    old = None if sharding_strategy is None else word_of("sharding_strategy", sharding_strategy)
    new = None if reshard_after_forward is None else word_of("reshard_after_forward", reshard_after_forward)
    return old, new


def prefetch_of(value: object) -> BackwardPrefetch | None:
    """Return when the backward pass of version 1 fetches the next unit, None if it does not before it needs it."""
    word = door.read("fsdp_backward_prefetch") if value is None else word_of("backward_prefetch", value)
    return None if word == "NO_PREFETCH" else BackwardPrefetch[word]


def state_dict_type_of(version: int, value: object) -> StateDictType:
    """Return how checkpoints are written.

    Raises:
        ConfigError: If the version has no such type.
    """
    word = given_or_set("state_dict_type", value)
    if version == 2 and word == "LOCAL_STATE_DICT":
        raise ConfigError(
            "`state_dict_type` is `LOCAL_STATE_DICT`, which FSDP version 2 does not have. "
            "Use `SHARDED_STATE_DICT` or `FULL_STATE_DICT`."
        )
    return StateDictType[word or ("FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT")]


def offload_of(version: int, value: object) -> Any:
    """Return where sharded parameters and gradients are kept, in the type of the version.

    Memory is pinned where this machine has an accelerator to copy it to. An object is returned as it is.
    """
    if value is None:
        value = door.read("fsdp_offload_params")
    if not isinstance(value, (bool, str)):
        return value
    is_wanted = word_of("cpu_offload", value, setting="offload_params")
    if version == 1:
        return CPUOffload(offload_params=is_wanted)
    return CPUOffloadPolicy(pin_memory=torch.accelerator.is_available()) if is_wanted else OffloadPolicy()


def check_offload(version: int, value: object) -> None:
    """Refuse an offload object that is not of the version's kind."""
    if not isinstance(value, _OFFLOADS[version]):
        raise ConfigError(
            f"`cpu_offload` is a `{type(value).__name__}`, but `fsdp_version={version}` needs True, False or a "
            f"`{'CPUOffload' if version == 1 else 'CPUOffloadPolicy'}`."
        )


def policy_of(version: int, value: Mapping[str, Any]) -> Any:
    """Return the mixed precision policy of the version that a dict describes.

    Raises:
        ConfigError: If it has a key that the version does not know, or a value that is no number format.
    """
    kind = _POLICIES[version]
    known = [field.name for field in dataclasses.fields(kind)]
    for key in value:
        if key not in known:
            raise ConfigError(
                f"`mixed_precision_policy` has the key `{key}`, which `fsdp_version={version}` does not know. "
                f"Known: {', '.join(known)}.{did_you_mean(str(key), known)}"
            )
    return kind(
        **{
            key: dtype_of(f"mixed_precision_policy[{key!r}]", entry) if key.endswith("_dtype") else entry
            for key, entry in value.items()
        }
    )


def check_policy(version: int, value: object) -> None:
    """Refuse a mixed precision policy that is not of the version's kind."""
    kind = _POLICIES[version]
    if not isinstance(value, kind):
        raise ConfigError(
            f"`mixed_precision_policy` is a `{type(value).__name__}`, but `fsdp_version={version}` needs a "
            f"`{kind.__name__}`, a dict of its fields, or one of: {', '.join(_DTYPES)}."
        )


def dtype_of(field: str, value: object) -> torch.dtype | None:
    """Return the number format that ``value`` names, as ``bf16`` or ``torch.bfloat16``; None stays None.

    Raises:
        ConfigError: If it names none.
    """
    if value is None:
        return None
    name = str(value).lower().removeprefix("torch.")
    found = _DTYPES.get(name) or getattr(torch, name, None)
    if not (isinstance(found, torch.dtype) and found.is_floating_point):
        raise ConfigError(
            f"`{field}` is `{value}`, but it must be a floating-point dtype of torch, or one of: "
            f"{', '.join(_DTYPES)}."
        )
    return found


def modules_of(value: object) -> list[nn.Module] | str | None:
    """Return the modules that are left unsharded, or the regular expression of their names.

    Raises:
        ConfigError: If it is neither.
    """
    if value is None:
        value = door.read("fsdp_ignored_modules")
    if value is None or isinstance(value, str):
        try:
            re.compile(value or "")
        except re.error as error:
            raise ConfigError(
                f"`ignored_modules` is `{value}`, which is not a regular expression: {error}."
            ) from error
        return value
    modules = list(value) if isinstance(value, Iterable) else [value]
    for module in modules:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"`ignored_modules` holds a `{type(module).__name__}`. Give modules, or one regular expression."
            )
    return modules


def names_of(value: object) -> list[str] | None:
    """Return the classes of layers that become units, None where nobody named them."""
    if value is None:
        value = door.read("fsdp_transformer_layer_cls_to_wrap")
    if value is None:
        return None
    if isinstance(value, str):
        value = find_setting("fsdp_transformer_layer_cls_to_wrap").value_of(value)
    if not isinstance(value, Iterable) or not all(isinstance(name, str) for name in value):
        raise ConfigError(
            f"`transformer_cls_names_to_wrap` must be names of classes, as a list or with commas, got {value!r}."
        )
    return list(value)


def number_of(field: str, value: object, *, minimum: int = 0) -> int:
    """Return ``value`` if it is a whole number of at least ``minimum``."""
    if type(value) is not int or value < minimum:
        raise ConfigError(f"`{field}` must be a whole number of at least {minimum}, got {value!r}.")
    return value
