"""Settings of a DeepSpeed config that cannot work in this run, refused before DeepSpeed fails on them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accel_backends.plugins.deepspeed.config_tree import value_of
from accel_state.errors import ConfigError

_QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def check_served(config: Mapping[str, Any], *, device_type: str) -> None:
    """Refuse quantization on CPUs, for which DeepSpeed has no kernels.

    Raises:
        ConfigError: Naming the key, and what to do.
    """
    for name in _QUANTIZED:
        key = f"zero_optimization.{name}"
        if device_type == "cpu" and value_of(config, key):
            raise ConfigError(
                f"`{key}` is true, but DeepSpeed quantizes on accelerators only, and this run is on the CPU. Remove "
                "the key here."
            )
