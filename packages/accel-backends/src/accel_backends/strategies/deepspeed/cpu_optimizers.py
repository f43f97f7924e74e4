"""Optimizers of torch exchanged for DeepSpeed's, which step on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from accel_state.availability import deepspeed_required
from accel_state.errors import ConfigError


class CPUOptimizer(NamedTuple):
    """DeepSpeed's version of an optimizer: where it is, and what it is made with beside the parameter groups.

    ``refused`` are options that it does not have, by their value that asks for nothing.
    """

    module: str
    name: str
    arguments: Mapping[str, Any]
    refused: Mapping[str, Any]


_ADAM = MappingProxyType({"amsgrad": False, "maximize": False})
_COUPLED = MappingProxyType({**_ADAM, "decoupled_weight_decay": False})
_ADAGRAD = MappingProxyType({"lr_decay": 0, "initial_accumulator_value": 0, "maximize": False})
# By the name of the class, also of those in other packages, such as bitsandbytes and lion_pytorch.
CPU_OPTIMIZERS: Mapping[str, CPUOptimizer] = MappingProxyType(
    {
        "Adam": CPUOptimizer("deepspeed.ops.adam", "DeepSpeedCPUAdam", {"adamw_mode": False}, _COUPLED),
        "AdamW": CPUOptimizer("deepspeed.ops.adam", "DeepSpeedCPUAdam", {"adamw_mode": True}, _ADAM),
        "Adagrad": CPUOptimizer("deepspeed.ops.adagrad", "DeepSpeedCPUAdagrad", {}, _ADAGRAD),
        "Lion": CPUOptimizer("deepspeed.ops.lion", "DeepSpeedCPULion", {}, {}),
    }
)
_ARGUMENTS = ("lr", "betas", "eps", "weight_decay")


@deepspeed_required
def map_pytorch_optim_to_deepspeed(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return DeepSpeed's version of an optimizer, which steps fast on the CPU, over the same parameters.

    Args:
        optimizer: Adam, AdamW, Adagrad or Lion; one that is DeepSpeed's already is returned as it is.

    Raises:
        ConfigError: If DeepSpeed has no version of it, or that lacks an option that is set.
        NotAvailableError: If DeepSpeed is not installed.
    """
    from importlib import import_module

    if type(optimizer).__module__.startswith("deepspeed."):
        return optimizer
    found = cpu_optimizer_of(optimizer)
    arguments = {name: optimizer.defaults[name] for name in _ARGUMENTS if name in optimizer.defaults}
    if "eps" in arguments and found.name == "DeepSpeedCPULion":
        del arguments["eps"]
    made: torch.optim.Optimizer = getattr(import_module(found.module), found.name)(
        optimizer.param_groups, **arguments, **found.arguments
    )
    return made


def cpu_optimizer_of(optimizer: torch.optim.Optimizer) -> CPUOptimizer:
    """Return which optimizer of DeepSpeed's does on the CPU what this one does.

    Raises:
        ConfigError: If none does.
    """
    names = [kind.__name__.removesuffix("32bit") for kind in type(optimizer).__mro__]  # of bitsandbytes
    name = next((name for name in names if name in CPU_OPTIMIZERS), None)
    if name is None:
        raise ConfigError(
            f"DeepSpeed has no version of `{type(optimizer).__name__}` that steps on the CPU; it has those of "
            f'{", ".join(CPU_OPTIMIZERS)}. Use one of them, or set `"zero_force_ds_cpu_optimizer": false` in the '
            "DeepSpeed config, which keeps yours."
        )
    found = CPU_OPTIMIZERS[name]
    num_bits = getattr(getattr(optimizer, "args", None), "optim_bits", 32)  # of bitsandbytes
    if num_bits != 32:
        raise ConfigError(
            f"`optim_bits` is {num_bits} in `{type(optimizer).__name__}`, but DeepSpeed's `{found.name}` keeps its "
            'state in 32 bits. Set it to 32, or set `"zero_force_ds_cpu_optimizer": false` in the DeepSpeed config.'
        )
    for group in optimizer.param_groups:
        for option, nothing in found.refused.items():
            if group.get(option, nothing) != nothing:
                raise ConfigError(
                    f"`{option}` is {group[option]} in `{type(optimizer).__name__}`, which DeepSpeed's `{found.name}` "
                    f'does not have. Set it to {nothing}, or set `"zero_force_ds_cpu_optimizer": false` in the '
                    "DeepSpeed config."
                )
    return found
