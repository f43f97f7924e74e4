"""One process on this machine, started as if by hand."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.nested_launch import variables_of_outer_run
from accel_launch.launchers.ranks import report_file, run_here
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest


class SingleProcessLauncher(BuiltInLauncher):
    """Starts the script once."""

    name: ClassVar[str] = "single"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        process = ProcessPlan(
            argv=request.program(),
            cwd=request.cwd,
            environ=request.environ(),
            unset=variables_of_outer_run(request.machine.environ),
        )
        return LaunchPlan(
            self.name,
            (process,),
            num_ranks=1,
            grace_period_s=request.value("grace_period_s"),
            is_quiet=request.is_quiet,
            report=report_file(request),
        )

    def run(self, plan: LaunchPlan) -> int:
        return run_here(plan)
