"""Settings of a DeepSpeed config that cannot work in this run, refused before DeepSpeed fails on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import value_of
from accel_backends.strategies.deepspeed.checkpoints.flat_groups import has_swapped_states
from accel_state.errors import ConfigError

_QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def check_served(config: Mapping[str, Any], *, device_type: str) -> None:
    """Refuse quantization on CPUs, for which DeepSpeed has no kernels, and a boundary that only `step` sets.

    Raises:
        ConfigError: Naming the key, and what to do.
    """
    if config.get("managed_gradient_accumulation") is False:
        raise ConfigError(
            "`managed_gradient_accumulation` is false, but here each `backward` sets whether it completes a step, "
            "which DeepSpeed then refuses. Remove the key from the DeepSpeed config."
        )
    for name in _QUANTIZED:
        key = f"zero_optimization.{name}"
        if device_type == "cpu" and value_of(config, key):
            raise ConfigError(
                f"`{key}` is true, but DeepSpeed quantizes on accelerators only, and this run is on the CPU. Remove "
                "the key here."
            )


def check_swapped_gradients(engine: Any) -> None:
    """Refuse groups of parameters whose gradients DeepSpeed 0.19.8 reads wrongly from NVMe, without an error.

    It reads each into its place in the buffer of the group; where that is not aligned, something else is there.

    Raises:
        ConfigError: If there is such a parameter.
    """
    optimizer = engine.optimizer
    if not has_swapped_states(engine):
        return
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    swapper = optimizer.optimizer_swapper
    for members in optimizer.fp16_groups:
        start = 0
        for parameter in members:
            numel = parameter.partition_numel()
            if start % swapper.numel_alignment and swapper.is_swappable_tensor(numel=numel):
                raise ConfigError(
                    "`zero_optimization.sub_group_size` of the DeepSpeed config puts parameters of many sizes into one "
                    f"group on NVMe, from which DeepSpeed would read wrong gradients of `{names[id(parameter)]}`. "
                    "Leave the key out: each parameter is a group of its own then."
                )
            start += numel
