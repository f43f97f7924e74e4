from accel.test_utils.regression import RegressionDataset as RegressionDataset
from accel.test_utils.regression import RegressionModel as RegressionModel
