"""Trying out on the CPU what a function does in several processes."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_launch.launchers.ports import held_port
from accel_launch.notebook.fork_checks import check_no_accelerator
from accel_launch.processes.supervision import require_fork
from accel_state.enums import DistributedType
from accel_state.environment import patch_environment

FORKED = {"FORK_LAUNCHED": "1"}
"""What `PartialState.fork_launched` is read from."""


def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> None:
    """Run a function in some processes on the CPU, to try out what it does in several.

    Args:
        function: What each process runs.
        args: Positional arguments for it.
        num_processes: How many.

    Blocks until all have ended; the exception of one that fails is raised here. Windows, which cannot fork, raises a
    `NotAvailableError`.
    """
    require_fork("`debug_launcher`")
    check_no_accelerator("debug_launcher")
    from torch.multiprocessing.spawn import start_processes

    with tempfile.TemporaryDirectory(prefix="accel-debug-") as folder, held_port(None) as port:
        variables = {
            "ACCELERATE_DEBUG_RDV_FILE": str(Path(folder) / "meeting"),
            "ACCELERATE_USE_CPU": "yes",
            "LOCAL_WORLD_SIZE": str(num_processes),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "WORLD_SIZE": str(num_processes),
        }
        rank = Rank(function, variables)
        # torch leaves this function unannotated
        start_processes(rank, args=tuple(args), nprocs=num_processes, start_method="fork")  # type: ignore[no-untyped-call]


class Rank:
    """What a forked process does: learn who it is, then call the function. Sent to torch's launchers."""

    def __init__(self, function: Callable[..., Any], variables: Mapping[str, str]) -> None:
        self.function = function
        self.variables = dict(variables)

    def __call__(self, index: int, *args: Any) -> Any:
        """Call the function as local rank ``index``."""
        own = {"LOCAL_RANK": str(index), "RANK": str(index), **FORKED}
        with patch_environment(**(self.variables | own)):
            return self.function(*args)


class PrepareForLaunch:
    """A function as launchers of torch and `torch_xla` call it: with the number of the process before its arguments.

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
        if self.distributed_type in (DistributedType.NO, DistributedType.XLA):
            with patch_environment(**FORKED):
                return self.launcher(*args)
        return Rank(self.launcher, {})(index, *args)


def test_launch() -> None:
    """Build the state of this process: a function for launchers, to see whether they work."""
    from accel_state.partial_state import PartialState

    PartialState()
