"""Several processes on this machine."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.ranks import asked_port, check_accelerators, plan_here, plan_ranks, run_with_port
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest


class LocalLauncher(BuiltInLauncher):
    """Starts the ranks, one for each accelerator."""

    name: ClassVar[str] = "local"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        check_accelerators(request)
        ranks = plan_ranks(request, num_here=request.num_processes)
        return plan_here(self.name, request, ranks, port=asked_port(request) or None)

    def run(self, plan: LaunchPlan) -> int:
        return run_with_port(plan)
