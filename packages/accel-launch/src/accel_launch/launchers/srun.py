"""All nodes of a SLURM job, from its batch script: one ``accel launch`` on each, through ``srun``."""

from __future__ import annotations

from typing import ClassVar

from accel_launch.launchers.ranks import run_here
from accel_launch.launchers.restated import restated
from accel_launch.launchers.routes import route
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest

# A step needs no longer than this to end once one of its nodes has failed.
_WAIT_S = 60
_SLACK_S = 10.0


class SRunLauncher:
    """Starts ``srun``; on each node the ranks find nodes, address and port in SLURM's variables."""

    name: ClassVar[str] = "srun"

    def accepts(self, request: LaunchRequest) -> bool:
        return route(request) == self.name

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        num_nodes = int(request.machine.environ["SLURM_JOB_NUM_NODES"])
        asked: int | None = request.value("num_processes")
        process = ProcessPlan(
            argv=(
                "srun",
                f"--nodes={num_nodes}",
                f"--ntasks={num_nodes}",
                "--ntasks-per-node=1",
                "--kill-on-bad-exit=1",
                f"--wait={_WAIT_S}",
                *restated(request),
            ),
            cwd=request.cwd,
        )
        return LaunchPlan(
            self.name,
            (process,),
            num_ranks=asked or num_nodes * request.num_processes,
            grace_period_s=request.value("grace_period_s") + _SLACK_S,
            is_quiet=True,  # each node tells of its own ranks
        )

    def run(self, plan: LaunchPlan) -> int:
        return run_here(plan)
