"""The sharding strategies of FSDP, as version 2 says them: what it reshards, and over which mesh."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from accel_state.errors import ConfigError

RESHARDS: Mapping[str, bool] = MappingProxyType(
    {"FULL_SHARD": True, "SHARD_GRAD_OP": False, "HYBRID_SHARD": True, "HYBRID_SHARD_ZERO2": False}
)
"""``reshard_after_forward`` of version 2 by the strategy of version 1; NO_SHARD has none."""

HYBRIDS = frozenset({"HYBRID_SHARD", "HYBRID_SHARD_ZERO2"})
"""Strategies with one full copy for each machine, which in version 2 is a matter of the mesh."""


def reshards(strategy: str) -> bool:
    """Return the ``reshard_after_forward`` of version 2 that does what a strategy of version 1 does.

    Raises:
        ConfigError: If that needs more than this one setting; it names what.
    """
    if strategy in HYBRIDS:
        raise ConfigError(
            f"`{strategy}` is not a strategy of FSDP version 2, where the mesh says how many full copies there are. "
            f"Pass `reshard_after_forward={RESHARDS[strategy]}` and `ParallelismConfig(dp_replicate_size=<number of "
            "machines>, dp_shard_size=<processes of each>)`."
        )
    if strategy not in RESHARDS:
        raise ConfigError(
            f"FSDP version 2 always shards, so `{strategy}` is not one of its strategies. Leave FSDP out, which trains "
            "with DDP, or use `FULL_SHARD` or `SHARD_GRAD_OP`."
        )
    return RESHARDS[strategy]
