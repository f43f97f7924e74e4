import pytest

from accel_launch import PrepareForLaunch
from accel_launch import test_launch as build_state
from accel_state import DistributedType, PartialState
from accel_state.environment import patch_environment, variable
from accel_state.errors import ConfigError


def ranks(*args):
    return [variable(name) for name in ("LOCAL_RANK", "RANK", "FORK_LAUNCHED")], args


def test_a_function_is_prepared_for_launchers_that_number_their_processes():
    with patch_environment(LOCAL_RANK=None, RANK=None, FORK_LAUNCHED=None):
        assert PrepareForLaunch(ranks, distributed_type="MULTI_CPU")(1, "a", 2) == (["1", "1", "1"], ("a", 2))
        assert PrepareForLaunch(ranks)(1, "a") == ([None, None, "1"], ("a",))
        assert PrepareForLaunch(ranks, DistributedType.XLA, debug=True)(3) == ([None, None, "1"], ())
        assert variable("FORK_LAUNCHED") is None


def test_a_kind_of_run_that_there_is_not_is_refused():
    with pytest.raises(ConfigError, match="`MULTI_ABACUS` is not a valid DistributedType"):
        PrepareForLaunch(ranks, "MULTI_ABACUS")


@pytest.mark.usefixtures("fresh_state")
def test_the_function_that_tries_a_launcher_out_builds_a_state():
    with patch_environment(ACCELERATE_USE_CPU="1"):
        build_state()
        assert PartialState.is_initialized()
