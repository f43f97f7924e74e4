import pytest

from accel_backends.strategies.deepspeed.unserved import check_served
from accel_state.errors import ConfigError


@pytest.mark.parametrize(
    "name", ["zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients"]
)
def test_quantization_is_refused_on_cpus_only(name):
    config = {"zero_optimization": {"stage": 3, name: True}}
    check_served(config, device_type="cuda")
    check_served({"zero_optimization": {"stage": 3, name: False}}, device_type="cpu")
    with pytest.raises(ConfigError, match=f"`zero_optimization.{name}` is true, but .* accelerators only"):
        check_served(config, device_type="cpu")
