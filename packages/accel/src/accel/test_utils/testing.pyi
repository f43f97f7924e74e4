from accel_ops.testing import are_the_same_tensors as are_the_same_tensors
from accel_state.testing import *
