"""Several processes on this machine."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.ranks import (
    asked_port,
    check_accelerators,
    plan_ranks,
    report_file,
    run_with_port,
)
from accel_launch.launchers.routes import route
from accel_launch.plan import LaunchPlan
from accel_launch.request import LaunchRequest


class LocalLauncher:
    """Starts the ranks itself: no agent in between, so the first failure is seen as it happens."""

    name: ClassVar[str] = "local"

    def accepts(self, request: LaunchRequest) -> bool:
        return route(request) == self.name

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        check_accelerators(request)
        return LaunchPlan(
            self.name,
            plan_ranks(request, num_here=request.num_processes),
            num_ranks=request.num_processes,
            grace_period_s=request.value("grace_period_s"),
            port=asked_port(request) or None,
            is_quiet=request.is_quiet,
            report=report_file(request),
        )

    def run(self, plan: LaunchPlan) -> int:
        return run_with_port(plan)
