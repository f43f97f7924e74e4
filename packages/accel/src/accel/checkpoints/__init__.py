"""Checkpoints that cannot be half there: written beside their place, listed, then renamed in one step."""

from __future__ import annotations

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "SaveHandle": "accel.checkpoints.background",
        "TORCH_SAFE_GLOBALS": "accel.checkpoints.functions",
        "load": "accel.checkpoints.functions",
        "load_accelerator_state": "accel.checkpoints.state_functions",
        "load_custom_state": "accel.checkpoints.functions",
        "save": "accel.checkpoints.functions",
        "save_accelerator_state": "accel.checkpoints.state_functions",
        "save_custom_state": "accel.checkpoints.functions",
    },
)
