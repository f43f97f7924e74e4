"""The error of a function that was started on several ranks; imported where torch is."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from accel_state.errors import LaunchError


class RanksFailedError(LaunchError, ChildFailedError):
    """A rank failed.

    Args:
        message: Which rank failed first, and with what.
        error: What torch's agent found.
    """

    def __init__(self, message: str, error: ChildFailedError) -> None:
        ChildFailedError.__init__(self, error.name, error.failures)
        self.args = (message,)
