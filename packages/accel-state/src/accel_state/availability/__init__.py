"""What is available here: packages, by their metadata; devices, by asking torch; and why not."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
