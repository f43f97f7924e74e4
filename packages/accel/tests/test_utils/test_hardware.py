import pytest

from accel.test_utils import hardware
from accel_state.devices import current_device_backend


def test_the_device_at_hand_is_described():
    device, count, memory = hardware.get_backend()
    assert device == hardware.torch_device == current_device_backend().name
    assert count == hardware.device_count >= 1
    assert memory() == hardware.memory_allocated_func() >= 0


def test_other_names_are_missing():
    with pytest.raises(AttributeError, match="no attribute `nothing`"):
        _ = hardware.nothing
