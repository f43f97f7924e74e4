"""Device vendors: their table, the class that drives their devices, and a file for each that differs."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
