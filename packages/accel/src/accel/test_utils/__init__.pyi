from accel.test_utils import testing as testing
from accel.test_utils import training as training
from accel.test_utils.testing import *
