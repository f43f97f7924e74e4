"""Collect the state of a run for a checkpoint, and restore it; accel-checkpoint writes and reads the files."""

from __future__ import annotations

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "load_accelerator_state": "accel.checkpoints.state_functions",
        "save_accelerator_state": "accel.checkpoints.state_functions",
    },
)
