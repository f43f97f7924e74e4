"""Functions that users import beside the Accelerator, and that belong to no other package."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
