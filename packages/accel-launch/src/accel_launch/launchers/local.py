"""Several processes on this machine."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.ranks import asked_port, plan_here, run_with_port
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest


class LocalLauncher(BuiltInLauncher):
    """Starts the ranks, one for each accelerator."""

    name: ClassVar[str] = "local"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        return plan_here(self.name, request, port=asked_port(request) or None)

    def run(self, plan: LaunchPlan) -> int:
        return run_with_port(plan)
