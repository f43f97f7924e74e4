import pytest

from accel_backends.strategies.bundle import InTurn
from accel_state.errors import ConfigError


def test_several_objects_in_place_of_one_are_given_in_turn():
    several = InTurn("train", "valid")
    assert [several.take(), several.take()] == ["train", "valid"]
    with pytest.raises(ConfigError, match="3 times, but it stands for 2"):
        several.take()
