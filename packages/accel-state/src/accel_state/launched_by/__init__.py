"""The launcher that started this process, and its rank: one pure reader of variables per launcher."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
