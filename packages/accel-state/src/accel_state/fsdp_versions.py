"""Settings of FSDP version 1 and the matching settings of version 2. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accel_state.environment.settings import SETTINGS
from accel_state.errors import ConfigError

RESHARDS: Mapping[str, bool] = MappingProxyType(
    {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
)
"""``reshard_after_forward`` of version 2 by the sharding strategy of version 1; NO_SHARD has none."""

HYBRIDS = frozenset({"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"})
"""Strategies with one replica for each machine, which version 2 sets through the mesh."""


def strategy_of(old: str | None, new: str | bool | None, *, is_from_launcher: bool) -> str:
    """Return the sharding strategy of version 1, which may be set by either of its two names.

    Args:
        old: The value of ``sharding_strategy``, None if it is unset.
        new: The value of ``reshard_after_forward``, None if it is unset.
        is_from_launcher: Whether a launcher may have set it: some set both names, the unused one to its default.

    Raises:
        ConfigError: If the two contradict each other, or the second is not for version 1.
    """
    if is_from_launcher:
        new = None if old is not None and isinstance(new, bool) else new
        old = None if old == "FULL_SHARD" and new is not None else old
    if isinstance(new, bool):
        raise ConfigError(
            f"`reshard_after_forward` is {new}, which is for `fsdp_version=2`. With version 1 it must be "
            f"{SETTINGS['fsdp_sharding_strategy'].parse.accepts}."
        )
    if None not in (old, new) and old != new:
        raise ConfigError(
            f"`sharding_strategy` (`{old}`) and `reshard_after_forward` (`{new}`) are one setting. Pass one of them."
        )
    return old or new or "FULL_SHARD"


def resharding_of(old: str | None, new: str | bool | None, *, is_from_launcher: bool) -> bool:
    """Return whether version 2 reshards parameters after the forward pass; see `strategy_of`.

    Raises:
        ConfigError: If the two contradict each other, or version 2 has no such strategy.
    """
    if is_from_launcher and new is not None:
        old = None
    requested = {
        word if isinstance(word, bool) else reshards(word) for word in (old, new) if word is not None
    }
    if len(requested) > 1:
        raise ConfigError(
            f"`sharding_strategy` (`{old}`) and `reshard_after_forward` ({new}) contradict each other. "
            "Pass the second only."
        )
    return requested.pop() if requested else True


def reshards(strategy: str) -> bool:
    """Return the ``reshard_after_forward`` of version 2 that matches a strategy of version 1.

    Raises:
        ConfigError: If that needs more than this setting; the message names it.
    """
    if strategy in HYBRIDS:
        raise ConfigError(
            f"`{strategy}` is not a strategy of FSDP version 2, where the mesh sets the number of replicas. "
            f"Set `reshard_after_forward` to {str(RESHARDS[strategy]).lower()}, and in `ParallelismConfig` "
            "`dp_replicate_size` to the number of machines and `dp_shard_size` to the processes of each."
        )
    if strategy not in RESHARDS:
        raise ConfigError(
            f"FSDP version 2 always shards, so `{strategy}` is not one of its strategies. Leave FSDP out, which trains "
            "with DDP, or use `FULL_SHARD` or `SHARD_GRAD_OP`."
        )
    return RESHARDS[strategy]


def state_dict_type_of(version: int, requested: str | None) -> str:
    """Return how a version writes checkpoints: as requested, or its default.

    Raises:
        ConfigError: If the type is not supported.
    """
    if requested == "LOCAL_STATE_DICT":
        raise ConfigError(
            "`state_dict_type` is `LOCAL_STATE_DICT`, flattened parameters that no other number of ranks could load, "
            "which is not written any more. Use `SHARDED_STATE_DICT` or `FULL_STATE_DICT`."
        )
    return requested or ("FULL_STATE_DICT" if version == 1 else "SHARDED_STATE_DICT")
