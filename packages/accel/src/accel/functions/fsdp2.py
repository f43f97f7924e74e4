"""Single steps of sharding under the names that scripts for Accelerate call; `Accelerator.prepare` does all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

    from accel.accelerator import Accelerator
    from accel_backends import FullyShardedDataParallelPlugin

__all__ = [
    "compile_regions_fsdp2",
    "fsdp2_apply_ac",
    "fsdp2_canonicalize_names",
    "fsdp2_load_full_state_dict",
    "fsdp2_prepare_auto_wrap_policy",
    "fsdp2_prepare_model",
    "fsdp2_switch_optimizer_parameters",
    "get_fsdp2_grad_scaler",
]

_WRAPPERS = ("_checkpoint_wrapped_module.", "_orig_mod.")
"""What wrappers add to the names of what they wrap."""


def fsdp2_prepare_model(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Shard ``model`` in place and return it. Every rank must call it."""
    return accelerator.prepare_model(model)


def fsdp2_apply_ac(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Let the units of ``model`` compute their activations again in the backward pass, in place; return it.

    Not needed beside ``activation_checkpointing`` of the plugin, which does this when the model is prepared.
    """
    from accel_backends.transforms.activation_checkpointing import checkpoint_units

    plugin = _plugin_of(accelerator)
    units = [model.get_submodule(name) for name in _units(plugin, model)]
    checkpoint_units(units, offloads_inputs=bool(plugin.activation_checkpointing_offload))
    return model


def fsdp2_canonicalize_names(named_params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict whose names are those from before activation checkpointing and compilation wrapped modules."""
    plain = {}
    for name, value in named_params.items():
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        plain[name] = value
    return plain


def fsdp2_load_full_state_dict(
    accelerator: Accelerator, model: nn.Module, full_sd: Mapping[str, Any], cpu_offload: bool = False
) -> nn.Module:
    """Load a whole state dict that rank 0 has into a model that is sharded, in place; return it.

    Every rank must call it. The model may be on the meta device; make optimizers afterwards then. `prepare` sends the
    values of rank 0 itself and does not need it.

    Args:
        accelerator: The accelerator.
        model: The sharded model.
        full_sd: The state dict; only that of rank 0 is looked at.
        cpu_offload: Whether shards that are on the meta device get memory on the CPU.

    Raises:
        CheckpointError: On every rank, if names or shapes of the state and the model differ.
    """
    import torch

    from accel_backends.sharding.full_state import load_state_of_rank_0

    kept_on = torch.device("cpu") if cpu_offload else accelerator.device
    load_state_of_rank_0(model, full_sd, device=accelerator.device, shard_device=kept_on)
    return model


def fsdp2_switch_optimizer_parameters(
    optimizer: torch.optim.Optimizer, mapping: Mapping[int, torch.Tensor]
) -> None:
    """Let ``optimizer`` step other parameters, in place; its state goes with them, cut like they are.

    Args:
        optimizer: Any optimizer.
        mapping: The new parameter for the ``data_ptr()`` of each old one.

    Raises:
        KeyError: If a parameter is missing there, before anything is changed.
    """
    from accel_backends.sharding.replacements import ReplacedParameters

    replaced = ReplacedParameters()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.data_ptr() not in mapping:
                raise KeyError(
                    f"`mapping` has no parameter for the one of shape {tuple(parameter.shape)} in the optimizer. "
                    "Make the mapping from all parameters of the model that the optimizer steps."
                )
            replaced.record(parameter, mapping[parameter.data_ptr()])
    replaced.repoint(optimizer)


def fsdp2_prepare_auto_wrap_policy(
    fsdp2_plugin: FullyShardedDataParallelPlugin, model: nn.Module
) -> Callable[[nn.Module], bool]:
    """Return a function that tells whether a module of ``model`` is a unit, as the plugin or the model says."""
    units = {id(model.get_submodule(name)) for name in _units(fsdp2_plugin, model)}
    return lambda module: id(module) in units


def compile_regions_fsdp2(module: nn.Module, **compile_kwargs: Any) -> nn.Module:
    """Compile the blocks that ``module`` repeats, in place, so that equal ones share a graph; return it.

    Args:
        module: Any model; one that repeats nothing is compiled as a whole.
        **compile_kwargs: Passed to `torch.compile`.
    """
    import torch

    from accel_backends.plans.sources import resolve_plan

    for name in resolve_plan(module).units or ("",):
        unit = module.get_submodule(name)
        unit.forward = torch.compile(unit.forward, **compile_kwargs)
    return module


def get_fsdp2_grad_scaler(**kwargs: Any) -> torch.amp.GradScaler:
    """Return a gradient scaler for sharded parameters; ``kwargs`` are those of `torch.amp.GradScaler`."""
    from accel_backends import get_grad_scaler

    return get_grad_scaler(**kwargs)


def _plugin_of(accelerator: Accelerator) -> FullyShardedDataParallelPlugin:
    from accel_state.errors import ConfigError

    plugin: FullyShardedDataParallelPlugin | None = accelerator.state.fsdp_plugin
    if plugin is None:
        raise ConfigError(
            "This `Accelerator` does not shard models. Give it a `FullyShardedDataParallelPlugin(fsdp_version=2)`."
        )
    return plugin


def _units(plugin: FullyShardedDataParallelPlugin, model: nn.Module) -> tuple[str, ...]:
    from accel_backends.plans.sources import resolve_plan

    return resolve_plan(model, given=plugin.parallel_plan, policy=plugin.units_policy()).units
