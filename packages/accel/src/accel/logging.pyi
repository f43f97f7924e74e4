from accel_state import MultiProcessAdapter as MultiProcessAdapter
from accel_state import PartialState as PartialState
from accel_state import get_logger as get_logger
