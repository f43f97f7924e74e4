"""One PyTorch script, unchanged, from a laptop to many machines."""

from accel_state.lazy import attach_stub

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
