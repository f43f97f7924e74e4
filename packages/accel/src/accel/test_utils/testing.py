"""Names that users import from `accel.test_utils.testing`; see `accel.aliases`."""

from accel.aliases import aliases

__getattr__, __dir__, __all__ = aliases(__name__)
