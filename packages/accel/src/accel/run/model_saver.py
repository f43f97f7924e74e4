"""Weights of prepared models in files that plain PyTorch reads."""

from __future__ import annotations

import os
from typing import Any

from torch import nn

import accel_bigmodel
from accel.run.configuration import RunConfiguration
from accel_backends import Strategy
from accel_state import PartialState


class ModelSaver:
    """Writes the weights of a model, on the ranks whose task that is.

    Args:
        configuration: Says whether each machine writes.
        processes: The processes of the run.
        strategy: Gives the whole state of a model.
    """

    def __init__(
        self, configuration: RunConfiguration, *, processes: PartialState, strategy: Strategy
    ) -> None:
        self._configuration = configuration
        self._processes = processes
        self._strategy = strategy

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes: rank 0, or each machine's with `save_on_each_node`."""
        if self._configuration.project.save_on_each_node:
            return self._processes.is_local_main_process
        return self._processes.is_main_process

    def save(
        self,
        model: nn.Module,
        folder: str | os.PathLike[str],
        *,
        max_shard_size: int | str,
        safe_serialization: bool,
    ) -> None:
        """Write the weights of `model`; if it is sharded, every rank must call it, and returns when they are there."""
        from accel_backends.sharding.full_state import deferred_state
        from accel_checkpoint.saving.model_weights import order_of_fetching

        state = deferred_state(self._strategy.exported_model_state(model), is_writer=self.is_writer)
        options: dict[str, Any] = {"max_shard_size": max_shard_size, "safe_serialization": safe_serialization}
        order = order_of_fetching(state, **options)
        before = [tensor.num_fetched for tensor in order]
        try:
            if self.is_writer:
                accel_bigmodel.save_model(state, folder, **options)
        finally:
            # All ranks gather each tensor together, also those that write nothing, or could not.
            for tensor, count in zip(order, before, strict=True):
                if tensor.num_fetched == count:
                    tensor.fetch()
        if self._strategy.capabilities.shards_parameters:
            self._processes.wait_for_everyone()
