from accel_state.testing import RegressionDataset as RegressionDataset
from accel_state.testing import RegressionModel as RegressionModel
