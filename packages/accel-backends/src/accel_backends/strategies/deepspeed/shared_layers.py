"""Tensor parallelism (AutoTP): ranks share each layer, which DeepSpeed cuts where the model is handed to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from accel_backends.plugins.deepspeed.config_tree import value_of
from accel_backends.strategies.deepspeed.layer_cuts import is_cut
from accel_backends.tensor_parallel.parallel import share_random_state
from accel_state.errors import ConfigError


class SharedLayers:
    """The ranks that share layers.

    Args:
        mesh: These ranks, along one axis.
        device: The device of this process.
    """

    def __init__(self, mesh: DeviceMesh, device: torch.device) -> None:
        self._mesh = mesh
        self._device = device

    def attach(self, model: nn.Module, config: Mapping[str, Any]) -> Any:
        """Return what tells `deepspeed.initialize` of the ranks. Communicates: all ranks.

        The ranks get the values of the first of them, since DeepSpeed lets each cut its own.

        Raises:
            ConfigError: If DeepSpeed cannot know how to cut the model, or parameters are sharded as well.
        """
        size = self._mesh.size()
        if value_of(config, "zero_optimization.stage") == 3:
            raise ConfigError(
                f"`tp_size` {size} shares layers with ZeRO 0, 1 and 2, but `zero_optimization.stage` is 3. Use "
                "stage 2, or FSDP, which shards what is left of the layers."
            )
        section = config.get("tensor_parallel", {})
        is_told = "partition_config" in section or "preset_model" in section
        if not hasattr(model, "config") and not is_told:
            raise ConfigError(
                f"`tp_size` {size} shares layers of transformers' models, which `{type(model).__name__}` is not: it "
                "has no `config`. Say how it is cut in `tensor_parallel.partition_config` of the DeepSpeed config, or "
                "set `tp_size` to 1."
            )
        if not is_cut(model):
            group = self._mesh.get_group()
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.data = tensor.data.to(self._device)
                dist.broadcast(tensor.data, group_src=0, group=group)
        from deepspeed.utils import groups

        groups._init_tp_mesh_device(tensor_model_parallel_size=size)
        return groups

    def finish(self, model: nn.Module) -> None:
        """Make sure that the model was cut, and let the ranks draw the same random numbers. Communicates: all ranks.

        Raises:
            ConfigError: If DeepSpeed found no layer to cut.
        """
        if not is_cut(model):
            raise ConfigError(
                f"`tp_size` is {self._mesh.size()}, but DeepSpeed found no layer of `{type(model).__name__}` that it "
                "could cut. Say which in `tensor_parallel.partition_config` of the DeepSpeed config, or set `tp_size` "
                "to 1."
            )
        share_random_state(self._mesh, self._device)

    def detach(self) -> None:
        """Let DeepSpeed forget the groups of ranks, which it would not make a second time."""
        from deepspeed.utils import groups

        groups._TENSOR_MODEL_PARALLEL_GROUP = None
        groups._MODEL_PARALLEL_GROUP = None
        groups._DATA_PARALLEL_GROUP = None
        groups.mpu = None
