"""Move nested data between ranks and devices: gather, reduce, broadcast, pad, seeds, memory."""

from accel_state.lazy import attach_stub

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = attach_stub(__name__)
