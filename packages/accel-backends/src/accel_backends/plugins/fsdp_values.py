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
)

from accel_state.environment import environ, find_setting
from accel_state.errors import ConfigError, did_you_mean
from accel_state.fsdp_versions import resharding_of, strategy_of

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


def sharding_of(version: int, old: Any, new: Any, *, is_from_launcher: bool) -> Any:
    """Return what is sharded: torch's strategy in version 1, in 2 whether gathered parameters are given up.

    Args:
        version: The version.
        old: The word of ``sharding_strategy``, None if it is unset.
        new: That of ``reshard_after_forward``.
        is_from_launcher: Whether a launcher may have set them.

    Raises:
        ConfigError: If the two contradict each other, or one has a value that the version does not know.
    """
    if version == 2:
        return resharding_of(old, new, is_from_launcher=is_from_launcher)
    word = strategy_of(old, new, is_from_launcher=is_from_launcher)
    return ShardingStrategy[f"_{word}" if word == "HYBRID_SHARD_ZERO2" else word]


def prefetch_of(value: object) -> BackwardPrefetch | None:
    """Return when the backward pass of version 1 fetches the next unit, None if it does not before it needs it."""
    word = environ.read("fsdp_backward_prefetch") if value is None else word_of("backward_prefetch", value)
    return None if word == "NO_PREFETCH" else BackwardPrefetch[word]


def offload_of(version: int, value: object) -> Any:
    """Return where sharded parameters and gradients are kept, in the type of the version.

    Memory is pinned where this machine has an accelerator to copy it to. An object is returned as it is.
    """
    if not isinstance(value, (bool, str)) and value is not None:
        return value
    is_wanted = value is not None and word_of("cpu_offload", value, setting="offload_params")
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
        return None
    if isinstance(value, str):
        try:
            re.compile(value)
        except re.error as error:
            raise ConfigError(
                f"`ignored_modules` is `{value}`, which is not a regular expression: {error}. Correct it."
            ) from error
        return value
    modules: list[nn.Module] = []
    for module in value if isinstance(value, Iterable) else [value]:
        if not isinstance(module, nn.Module):
            raise ConfigError(
                f"`ignored_modules` holds a `{type(module).__name__}`. Give modules, or one regular expression."
            )
        modules.append(module)
    return modules


def names_of(value: object) -> list[str] | None:
    """Return the classes of layers that become units, None where nobody named them."""
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
