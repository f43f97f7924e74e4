"""Telling libraries that load models whether rank 0 alone needs the weights, as FSDP can send them to all."""

from __future__ import annotations

from accel_state.environment import environ


def enable_fsdp_ram_efficient_loading() -> None:
    """Let transformers' ``from_pretrained`` read weights on rank 0 only, from now on and in processes started here.

    It sets ``FSDP_CPU_RAM_EFFICIENT_LOADING`` and, where it is unset, ``ACCELERATE_USE_FSDP``. The other ranks have
    empty weights until the model is prepared. The process group must be there before a model is loaded.
    """
    if not environ.is_set("use_fsdp"):
        environ.write("use_fsdp", True)
    environ.write("fsdp_cpu_ram_efficient_loading", True)


def disable_fsdp_ram_efficient_loading() -> None:
    """Let every rank read the weights of models again."""
    environ.write("fsdp_cpu_ram_efficient_loading", False)
