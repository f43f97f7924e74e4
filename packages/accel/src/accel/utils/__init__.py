"""Names that users import from `accel.utils`; see `accel.aliases`."""

import accel.utils.tqdm  # noqa: F401  (loaded first: importing it later would put the module over the function)
from accel.aliases import aliases
from accel.functions.progress import tqdm as tqdm

__getattr__, __dir__, __all__ = aliases(__name__)
