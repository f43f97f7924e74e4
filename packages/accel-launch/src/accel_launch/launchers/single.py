"""One process on this machine, started as if by hand; a task of ``mpirun`` or ``srun`` becomes its rank so."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from typing import ClassVar

from accel_launch.launchers.local import asked_port, plan_programs, run_here, threads_per_process
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.child import ChildEnding
from accel_launch.report import tell
from accel_launch.request import LaunchRequest, variables_of_outer_run
from accel_state.environment import snapshot
from accel_state.errors import ConfigError


class SingleProcessLauncher(BuiltInLauncher):
    """Starts the script once."""

    name: ClassVar[str] = "single"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        process = ProcessPlan(
            argv=request.program(),
            cwd=request.cwd,
            environ=_variables_of_rank(request) | request.environ(),
            unset=variables_of_outer_run(request.machine.environ),
        )
        return plan_programs(self.name, request, [process], num_ranks=1)

    def run(self, plan: LaunchPlan) -> int:
        return run_here(plan) if hasattr(os, "fork") else _run_unsupervised(plan)


def _run_unsupervised(plan: LaunchPlan) -> int:
    """Run the script where a supervisor cannot be forked, as on Windows: it gets Ctrl-C, and is waited for."""
    (process,) = plan.processes
    with subprocess.Popen(process.argv, cwd=process.cwd, env=process.environ_on(snapshot())) as script:
        while script.poll() is None:
            with suppress(
                KeyboardInterrupt
            ):  # the console has sent it to the script, too, which ends as it likes
                script.wait()
    return tell(plan, [ChildEnding(script.returncode)])


def _variables_of_rank(request: LaunchRequest) -> dict[str, str]:
    """Return the variables of a rank of an outer run that ``mpirun`` or ``srun`` does not set: the rendezvous.

    Raises:
        ConfigError: If the address of rank 0 is missing for ranks on several machines.
    """
    place = request.outer_rank
    if place is None:
        return {}
    address = request.value("master_addr") or place.master_addr
    if address is None:
        raise ConfigError(
            "Ranks that `mpirun` starts on several machines need `--main_process_ip`, the address of the machine of "
            "rank 0."
        )
    found = {"MASTER_ADDR": address, "MASTER_PORT": str(asked_port(request) or place.master_port)}
    if place.source != "slurm":
        found["OMP_NUM_THREADS"] = str(threads_per_process(request, place.local_world_size))
    return found
