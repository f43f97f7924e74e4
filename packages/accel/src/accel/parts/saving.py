"""Get weights out of a run; accel-bigmodel writes them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

import accel_bigmodel
from accel.configuration import RunConfiguration
from accel_backends import Strategy
from accel_state import PartialState


class Saving:
    """Weights of prepared models, in files that plain PyTorch reads."""

    configuration: RunConfiguration
    processes: PartialState
    _strategy: Strategy

    @property
    def should_save_model(self) -> bool:
        """Whether this rank writes model files: rank 0, or each machine's with `save_on_each_node`."""
        if self.configuration.project.save_on_each_node:
            return self.processes.is_local_main_process
        return self.processes.is_main_process

    def unwrap_model(
        self, model: nn.Module, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True
    ) -> nn.Module:
        """Return the model that was prepared, out of what the run put around it.

        Args:
            model: A prepared model.
            keep_fp32_wrapper: Leave the mixed-precision forward on it.
            keep_torch_compile: Leave it compiled.
        """
        return self._strategy.unwrap(
            model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile
        )

    def get_state_dict(self, model: nn.Module, unwrap: bool = True) -> Mapping[str, Tensor]:
        """Return the whole state of a prepared model under its own names.

        Every rank must call it where parameters are sharded.

        Args:
            model: A prepared model.
            unwrap: Leave out the names that wrappers add.
        """
        if not unwrap:
            state: Mapping[str, Any] = model.state_dict()
            return state
        return self._strategy.model_state(model)

    def save_model(
        self,
        model: nn.Module,
        save_directory: str | os.PathLike[str],
        max_shard_size: int | str = "10GB",
        safe_serialization: bool = True,
    ) -> None:
        """Write the weights of a prepared model for plain PyTorch to read. Every rank must call it.

        Args:
            model: A prepared model.
            save_directory: Folder, made where it is missing.
            max_shard_size: Largest size of one file, in bytes or such as `"5GB"`.
            safe_serialization: Write `model.safetensors`; else `pytorch_model.bin`.

        Raises:
            CheckpointError: If a tensor has no data (it is on the meta device), naming it.
        """
        state = self.get_state_dict(model)
        if self.should_save_model:
            accel_bigmodel.save_model(
                state, save_directory, max_shard_size=max_shard_size, safe_serialization=safe_serialization
            )
        self.processes.wait_for_everyone()
