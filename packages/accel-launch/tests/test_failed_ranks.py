from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from accel_launch.failed_ranks import RanksFailedError
from accel_state.errors import LaunchError


def test_it_is_the_error_of_torch_too_with_our_message():
    found = ChildFailedError("train", {1: ProcessFailure(local_rank=1, pid=2, exitcode=3, error_file="")})
    error = RanksFailedError("Rank 1 failed first.", found)
    assert isinstance(error, LaunchError)
    assert isinstance(error, ChildFailedError)
    assert str(error) == "Rank 1 failed first."
    assert error.get_first_failure()[0] == 1
