"""Several machines, on each of which this command is given with its own ``--machine_rank``."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.local import at_port, plan_here, run_here, run_with_port
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError

DEFAULT_PORT = 29500


class MachinesLauncher(BuiltInLauncher):
    """Starts the ranks of this machine; they meet those of the others at rank 0, once."""

    name: ClassVar[str] = "machines"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        port = meeting_port(request)
        return at_port(plan_here(self.name, request, port=port, master_addr=meeting_address(request)), port)

    def run(self, plan: LaunchPlan) -> int:
        is_where_they_meet = any(process.rank == 0 for process in plan.processes)
        return run_with_port(plan) if is_where_they_meet else run_here(plan)


def meeting_address(request: LaunchRequest) -> str:
    """Return the address of the machine that the ranks meet at."""
    address: str | None = request.value("master_addr")
    if not address:
        raise ConfigError(
            "Several machines need `--main_process_ip`, the address of the machine with `--machine_rank 0`."
        )
    return address


def meeting_port(request: LaunchRequest) -> int:
    """Return the port that the ranks meet at."""
    port: int | None = request.value("master_port")
    if port == 0:
        raise ConfigError(
            "`--main_process_port` is 0, a free one, but several machines must agree on it. Give a number, or "
            "start them all from here with `--hosts`."
        )
    return port or DEFAULT_PORT
