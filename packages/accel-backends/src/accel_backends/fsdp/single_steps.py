"""Single steps of sharding under the names that scripts for Accelerate call; `Accelerator.prepare` does all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from accel_backends.activation_checkpointing import checkpoint_units
from accel_backends.fsdp.config import FSDPConfig
from accel_backends.fsdp.parameters import ReplacedParameters
from accel_backends.fsdp.state import load_state_of_rank_0
from accel_backends.plans.sources import resolve_plan
from accel_backends.precisions.loss_scaler import get_grad_scaler
from accel_state.errors import ConfigError

if TYPE_CHECKING:
    from accel_backends.plugins.fsdp import FullyShardedDataParallelPlugin


def fsdp2_prepare_model(accelerator: Any, model: nn.Module) -> nn.Module:
    """Shard ``model`` in place and return it. Every rank must call it."""
    prepared: nn.Module = accelerator.prepare_model(model)
    return prepared


def fsdp2_apply_ac(accelerator: Any, model: nn.Module) -> nn.Module:
    """Apply activation checkpointing to the FSDP units of ``model``, in place; return it.

    Not needed with ``activation_checkpointing`` of the plugin, which does this when the model is prepared.

    Raises:
        ConfigError: If the accelerator has no FSDP plugin.
    """
    plugin: FullyShardedDataParallelPlugin | None = accelerator.state.fsdp_plugin
    if plugin is None:
        raise ConfigError(
            "This `Accelerator` does not shard models. Give it a `FullyShardedDataParallelPlugin(fsdp_version=2)`."
        )
    config = plugin.config()
    units = [model.get_submodule(name) for name in _units(config, model)]
    checkpoint_units(units, offloads_inputs=config.activation_checkpointing_offload)
    return model


def fsdp2_canonicalize_names(named_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict by the names without what activation checkpointing and compilation add to them."""
    return {
        name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", ""): value
        for name, value in named_params.items()
    }


def fsdp2_load_full_state_dict(
    accelerator: Any, model: nn.Module, full_sd: Mapping[str, Any], cpu_offload: bool = False
) -> nn.Module:
    """Load a full state dict of rank 0 into a sharded model, in place; return it. Every rank must call it.

    The model may be on the meta device; create optimizers afterwards then. `prepare` broadcasts the values of rank 0
    itself and does not need this.

    Args:
        accelerator: The accelerator.
        model: The sharded model.
        full_sd: The state dict; used on rank 0 only.
        cpu_offload: Whether shards on the meta device are allocated on the CPU.

    Raises:
        CheckpointError: On every rank, if names or shapes of the state and the model differ.
    """
    shard_device = torch.device("cpu") if cpu_offload else accelerator.device
    load_state_of_rank_0(model, full_sd, device=accelerator.device, shard_device=shard_device)
    return model


def fsdp2_switch_optimizer_parameters(
    optimizer: torch.optim.Optimizer, mapping: Mapping[int, torch.Tensor]
) -> None:
    """Replace the parameters of ``optimizer``, in place; its state is sharded like the new ones.

    Args:
        optimizer: Any optimizer.
        mapping: The new parameter for the ``data_ptr()`` of each old one.

    Raises:
        KeyError: If a parameter is missing there, before anything is changed.
    """
    replaced = ReplacedParameters()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.data_ptr() not in mapping:
                raise KeyError(
                    f"`mapping` has no parameter for the one of shape {tuple(parameter.shape)} in the optimizer. "
                    "Make the mapping from all parameters of the model that the optimizer steps."
                )
            replaced.record([(parameter, mapping[parameter.data_ptr()])])
    replaced.repoint(optimizer)


def fsdp2_prepare_auto_wrap_policy(
    fsdp2_plugin: FullyShardedDataParallelPlugin, model: nn.Module
) -> Callable[[nn.Module], bool]:
    """Return a function of a module of ``model``: whether it is an FSDP unit by the plugin, or by the model's plan."""
    units = {id(model.get_submodule(name)) for name in _units(fsdp2_plugin.config(), model)}
    return lambda module: id(module) in units


def get_fsdp2_grad_scaler(**kwargs: Any) -> torch.amp.GradScaler:
    """Return a gradient scaler for sharded parameters; ``kwargs`` are those of `torch.amp.GradScaler`."""
    return get_grad_scaler(**kwargs)


def _units(config: FSDPConfig, model: nn.Module) -> tuple[str, ...]:
    return resolve_plan(model, given=config.parallel_plan, policy=config.units).units
