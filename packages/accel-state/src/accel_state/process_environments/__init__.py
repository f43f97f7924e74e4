"""Which launcher started this process, and with which rank: one pure reader of variables per launcher."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
