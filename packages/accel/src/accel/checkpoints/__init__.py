"""Collect the state of a run for a checkpoint, and restore it; accel-checkpoint writes and reads the files."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
