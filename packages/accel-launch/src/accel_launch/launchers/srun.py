"""All nodes of a SLURM job, from its batch script: one ``accel launch`` on each, through ``srun``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from accel_launch.launchers.relaunch import relaunch_command
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.child import exit_code_for_shell
from accel_launch.processes.supervision import run_processes
from accel_launch.request import LaunchRequest
from accel_state.environment import snapshot

# Beyond the time the nodes give their ranks: for each node's own launcher, and for the way there and back.
_NODE_SLACK_S = 3.0
_SLACK_S = 10.0


class SRunLauncher(BuiltInLauncher):
    """Starts ``srun``; on each node the ranks find nodes, address and port in SLURM's variables."""

    name: ClassVar[str] = "srun"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        num_nodes = int(request.machine.environ["SLURM_JOB_NUM_NODES"])
        grace_period_s: float = request.value("grace_period_s")
        asked: int | None = request.value("num_processes")
        process = ProcessPlan(
            argv=(
                "srun",
                f"--nodes={num_nodes}",
                f"--ntasks={num_nodes}",
                "--ntasks-per-node=1",
                *_cpus_of_task(request.machine.environ),
                "--input=all",
                "--kill-on-bad-exit=1",
                f"--wait={math.ceil(grace_period_s + _SLACK_S)}",  # once one of the nodes has ended
                *request.interpreter,
                "-P",
                "-m",
                "accel_launch.srun_task",
                str(grace_period_s + _NODE_SLACK_S),
                *relaunch_command(request),
            ),
            cwd=request.cwd,
        )
        return LaunchPlan(
            self.name,
            (process,),
            num_ranks=asked or num_nodes * request.num_processes,
            grace_period_s=grace_period_s + _SLACK_S,
            is_quiet=True,  # each node reports on its own ranks
        )

    def run(self, plan: LaunchPlan) -> int:
        """Run ``srun``; signals go to the nodes through its input, since it would make a SIGTERM a SIGKILL."""
        ending = run_processes(
            plan.processes,
            host_environ=snapshot(),
            grace_period_s=plan.grace_period_s,
            orders=[lambda attempt: b""],
        )
        exit_code = exit_code_for_shell(ending.children[0].return_code)
        return exit_code or (0 if ending.interrupted_by is None else 128 + ending.interrupted_by)


def _cpus_of_task(environ: Mapping[str, str]) -> list[str]:
    """Return the flag that gives the task of each node all CPUs that the job has there.

    Without it a task has one, since SLURM 22.05: ``srun`` no longer takes over the options of ``sbatch``.
    """
    per_node = environ.get("SLURM_JOB_CPUS_PER_NODE")  # such as `64(x2),32`
    if per_node is None or "SRUN_CPUS_PER_TASK" in environ:
        return []
    return [f"--cpus-per-task={min(int(part.partition('(')[0]) for part in per_node.split(','))}"]
