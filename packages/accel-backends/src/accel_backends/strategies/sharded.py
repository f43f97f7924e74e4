"""What both versions of FSDP share as strategies."""

from __future__ import annotations

from typing import ClassVar

from accel_backends.handlers.autocast import AutocastKwargs
from accel_backends.own_group import ensure_group
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin
from accel_backends.sharding.replacements import ReplacedParameters
from accel_backends.strategies.capabilities import NOT_APART, ONLY_DDP_HAS_HOOKS, Feature
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.strategy import Strategy

SHARDS_LACK = {
    Feature.JOIN: "a rank that has no batch left would keep its shards from the others. Let all ranks get as many "
    "batches with `even_batches=True`.",
    Feature.COMMUNICATION_HOOK: ONLY_DDP_HAS_HOOKS,
    Feature.LOCAL_SGD: NOT_APART,
}
"""What no strategy does that cuts parameters over the ranks."""


class ShardedStrategy(Strategy):
    """Parameters are cut over the ranks; one rank alone is a group of one."""

    version: ClassVar[int]

    def setup(self, context: StrategyContext) -> None:
        """Bind the strategy to the run; a single process gets a process group."""
        super().setup(context)
        given = context.plugin
        self._plugin = (
            given
            if isinstance(given, FullyShardedDataParallelPlugin)
            else FullyShardedDataParallelPlugin(fsdp_version=self.version)
        )
        handler = context.handlers.of(AutocastKwargs)
        self._has_autocast = handler is None or handler.enabled
        ensure_group(context.runtime)
        self._replaced = ReplacedParameters()
        context.precision.share_overflows()
