"""megatron-core, imported when it is needed first."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

from accel_state.availability import is_megatron_lm_available
from accel_state.errors import NotAvailableError


def core(name: str = "") -> ModuleType:
    """Return a module of megatron-core, such as ``parallel_state``; without a name the package.

    Raises:
        NotAvailableError: If megatron-core is not installed.
    """
    if not is_megatron_lm_available():
        raise NotAvailableError(
            "Megatron-LM needs the package `megatron-core`, which is not installed. "
            "Run `pip install 'megatron-core>=0.16,<0.17' transformers`."
        )
    import megatron.core

    found: ModuleType = importlib.import_module(f"megatron.core.{name}") if name else megatron.core
    return found


def check_device() -> None:
    """Refuse to compute without CUDA.

    Raises:
        NotAvailableError: If torch finds no CUDA device.
    """
    if not torch.cuda.is_available():
        raise NotAvailableError(
            "Megatron-LM computes on CUDA devices only, and torch finds none here. Run on a machine with NVIDIA GPUs, "
            "or train with `FullyShardedDataParallelPlugin`, which runs anywhere."
        )
