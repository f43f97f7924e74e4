"""Names that users import from `accel.utils`; see `accel.faces`."""

import accel.utils.tqdm  # noqa: F401  (loaded first: importing it later would put the module over the function)
from accel.faces import face
from accel.progress import tqdm as tqdm

__getattr__, __dir__, __all__ = face(__name__)
