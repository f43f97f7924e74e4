"""What a run puts into a checkpoint, and takes out of one; accel-checkpoint writes and reads it."""

from __future__ import annotations

from accel_state.lazy import attach

__getattr__, __dir__, __all__ = attach(
    __name__,
    {
        "load_accelerator_state": "accel.checkpoints.state_functions",
        "save_accelerator_state": "accel.checkpoints.state_functions",
    },
)
