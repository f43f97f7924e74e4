"""Keyword arguments for the torch objects that accel builds, one handler per object."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
