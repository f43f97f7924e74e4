from accel.functions import tqdm as tqdm
from accel_state import PartialState as PartialState
from accel_state.availability import is_tqdm_available as is_tqdm_available
