"""The environment: settings by name, other variables, and temporary changes."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
