"""Atomic checkpoints, for one process or many: a checkpoint is complete, or it does not exist."""

from accel_state.lazy import attach_stub

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
