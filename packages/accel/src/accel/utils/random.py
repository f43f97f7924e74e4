"""Names that users import from `accel.utils.random`; see `accel.faces`."""

from accel.faces import face

__getattr__, __dir__, __all__ = face(__name__)
