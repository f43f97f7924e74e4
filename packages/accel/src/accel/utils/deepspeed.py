"""Names that users import from `accel.utils.deepspeed`."""

from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
