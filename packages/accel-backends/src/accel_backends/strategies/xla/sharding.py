"""One process that drives several devices (SPMD): batches and, with FSDPv2, parameters are spread over a mesh."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from accel_backends.fsdp.config import FSDPConfig
from accel_backends.plans.model_names import ModelNames
from accel_backends.plans.policies import TransformerBased
from accel_backends.strategies.xla import packages
from accel_ops.xla_rows import row_axes, spread_rows
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout

SHARD_AXIS = "fsdp"
"""What FSDPv2 of `torch_xla` calls the axis that parameters are cut along."""
_AXES = {"dp_replicate": "dp_replicate", "dp_shard": SHARD_AXIS}


def spmd_mesh(layout: MeshLayout) -> Any:
    """Return a `torch_xla.distributed.spmd.Mesh` of all devices, arranged as ``layout`` says."""
    sizes = {name: layout.size(axis) for axis, name in _AXES.items()}
    return packages.spmd().Mesh(list(range(layout.world_size)), tuple(sizes.values()), tuple(sizes))


def mesh_of_run(*, shards_parameters: bool) -> Any:
    """Return the mesh that the script has set, or else one over all devices, which is then the script's too.

    Raises:
        ConfigError: If the mesh that was set has no axis for what is to be spread.
    """
    spmd = packages.spmd()
    mesh = spmd.get_global_mesh()
    if mesh is None:
        number = int(packages.runtime().global_runtime_device_count())
        mesh = spmd_mesh(
            MeshLayout(dp_shard=number) if shards_parameters else MeshLayout(dp_replicate=number)
        )
        spmd.set_global_mesh(mesh)
    elif not row_axes(mesh) or (shards_parameters and SHARD_AXIS not in mesh.axis_names):
        raise ConfigError(
            f"The mesh given to `torch_xla.distributed.spmd.set_global_mesh` has the axes {mesh.axis_names}. Batches "
            f"are spread over `dp_replicate`, `data` and `{SHARD_AXIS}`, parameters over `{SHARD_AXIS}`. Name an axis "
            "so, or set no mesh."
        )
    return mesh


class FullyShardedModels:
    """Cuts parameters over the axis ``fsdp`` of a mesh, as FSDPv2 of `torch_xla` does, and adds no wrapper.

    XLA's compiler gathers each parameter where it is used. The outputs of units are spread by rows, which keeps it
    from spreading them otherwise.

    Args:
        mesh: The mesh.
        read_config: Returns the settings: which modules are units, and what is done with them.
    """

    def __init__(self, mesh: Any, read_config: Callable[[], FSDPConfig]) -> None:
        self._mesh = mesh
        self._read_config = read_config

    def shard(self, model: nn.Module) -> None:
        """Shard ``model``, which is on the device, in place.

        Raises:
            ConfigError: If activations are to be computed again and no module is a unit.
        """
        config = self._read_config()
        policy = config.units or TransformerBased()
        units = [named.module for named in policy.fields(ModelNames(model)).get("units", ())]
        if config.activation_checkpointing:
            if not units:
                raise ConfigError(
                    f"`xla_fsdp_grad_ckpt` has no effect on this {type(model).__name__}, of which no part is a unit. "
                    "Name its units by `auto_wrap_policy`, or leave it off."
                )
            for unit in units:
                packages.fsdp().checkpoint_module(unit)
        self.spread(model)
        for unit in units:
            packages.spmd().apply_backward_optimization_barrier(unit)
        for module in [*units, model]:
            module.register_forward_hook(
                partial(_mark_output, config.shard_output or spread_rows, self._mesh)
            )

    def spread(self, model: nn.Module) -> None:
        """Mark the parameters of ``model`` as spread, those again that have been so before."""
        for parameter in model.parameters():
            self._mark(parameter)

    def spread_states(self, optimizer: torch.optim.Optimizer) -> None:
        """Mark the states of ``optimizer`` as spread that have the shape of their parameter."""
        for parameter, state in optimizer.state.items():
            for value in state.values():
                if isinstance(value, torch.Tensor) and value.shape == parameter.shape:
                    self._mark(value)

    def _mark(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "xla" or tensor.dim() == 0:
            return
        longest = max(range(tensor.dim()), key=tensor.shape.__getitem__)
        spec = tuple(SHARD_AXIS if dim == longest else None for dim in range(tensor.dim()))
        packages.spmd().mark_sharding(tensor, self._mesh, spec)


def _mark_output(
    mark: Callable[[Any, Any], None], mesh: Any, module: nn.Module, args: Any, output: Any
) -> None:
    mark(output, mesh)
