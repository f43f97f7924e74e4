"""How a PyTorch model is trained: strategies, precisions, optimizer and scheduler wrappers."""

from accel_state.lazy import attach_stub

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
