"""Names that users import from `accel.utils`."""

import accel.utils.tqdm  # noqa: F401  (loaded first: importing it later would put the module over the function)
from accel.functions import tqdm as tqdm
from accel_state.lazy import attach_stub

__getattr__, __dir__, __all__ = attach_stub(__name__)
