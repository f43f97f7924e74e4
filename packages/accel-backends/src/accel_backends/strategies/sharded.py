"""What both versions of FSDP share as strategies."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from accel_backends.own_group import ensure_group
from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin
from accel_backends.sharding.replacements import ReplacedParameters
from accel_backends.strategies.context import StrategyContext
from accel_backends.strategies.torch_strategy import TorchStrategy
from accel_state.errors import ConfigError


class ShardedStrategy(TorchStrategy):
    """Parameters are cut over the ranks; one rank alone is a group of one."""

    version: ClassVar[int]

    def setup(self, context: StrategyContext) -> None:
        """Take in the run; one process alone gets a process group of its own."""
        super().setup(context)
        given = context.plugin
        self._plugin = (
            given
            if isinstance(given, FullyShardedDataParallelPlugin)
            else FullyShardedDataParallelPlugin(fsdp_version=self.version)
        )
        ensure_group(context.runtime)
        self._replaced = ReplacedParameters()
        context.precision.share_overflows()

    def join_uneven_inputs(self, models: Sequence[Any]) -> AbstractContextManager[Any]:
        """Refuse batches that end at different times on different ranks.

        Raises:
            ConfigError: With more than one rank: one without a batch cannot hand its shards to the others.
        """
        if self.context.topology.world_size > 1:
            raise ConfigError(
                "`join_uneven_inputs` is not possible where parameters are sharded: a rank that has no batch left "
                "would keep its shards from the others. Let all ranks get as many batches with `even_batches=True`."
            )
        return nullcontext()
