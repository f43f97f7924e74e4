"""Functions as launchers of torch and `torch_xla` call them, for those who start processes by these themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_launch.notebook.ranks import FORKED
from accel_state.enums import DistributedType
from accel_state.environment import patch_environment


class PrepareForLaunch:
    """A function that is called with the number of its process before its arguments.

    Args:
        launcher: The function that each process of this machine runs.
        distributed_type: What users' code calls such a run. With ``NO`` and ``XLA`` it is told no rank: there is one
            process, or the runtime knows.
        debug: For those who tell `debug_launcher` apart; the processes meet as it says, either way.
    """

    def __init__(
        self,
        launcher: Callable[..., Any],
        distributed_type: DistributedType | str = "NO",
        debug: bool = False,
    ) -> None:
        self.launcher = launcher
        self.distributed_type = DistributedType(str(distributed_type))
        self.debug = debug

    def __call__(self, index: int, *args: Any) -> Any:
        """Call the function as local rank ``index``."""
        has_rank = self.distributed_type not in (DistributedType.NO, DistributedType.XLA)
        own = {"LOCAL_RANK": str(index), "RANK": str(index)} if has_rank else {}
        with patch_environment(**own, **FORKED):
            return self.launcher(*args)


def test_launch() -> None:
    """Build the state of this process: a function for launchers, to see whether they work."""
    from accel_state.partial_state import PartialState

    PartialState()
