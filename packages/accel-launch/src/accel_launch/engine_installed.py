"""Whether the package of the engine is there, asked before anything starts."""

from __future__ import annotations

from accel_launch.launchers.selection import route
from accel_launch.messages import warn
from accel_launch.request import LaunchRequest
from accel_state.availability import why_not
from accel_state.errors import NotAvailableError

# Ranks of the other launchers run elsewhere, maybe with other packages.
_STARTED_HERE = ("single", "local", "machines", "elastic", "mpi")


def check_engine_installed(request: LaunchRequest) -> None:
    """Refuse to train with DeepSpeed where it is not installed; where ranks may have it all the same, warn.

    Raises:
        NotAvailableError: If the ranks would run with the packages of this process.
    """
    if request.engine != "DEEPSPEED":
        return
    reason = why_not("deepspeed")
    if reason is None or route(request) == "deepspeed":  # which says so itself
        return
    if request.kind != "executable" and route(request) in _STARTED_HERE:
        raise NotAvailableError(f"`--use_deepspeed` needs DeepSpeed, and nothing was started. {reason}")
    warn(f"`--use_deepspeed` needs DeepSpeed where the ranks run; here: {reason}")
