"""Several machines that agree on their ranks whenever these start: ``--rdzv_backend c10d``, or ``--max_restarts``."""

from __future__ import annotations

import getpass
import hashlib
from typing import ClassVar

from accel_launch.launchers.machines import meeting_address, meeting_port
from accel_launch.launchers.ports import held_port
from accel_launch.launchers.ranks import asked_port, plan_here, run_here
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan
from accel_launch.processes.rendezvous_client import program_of
from accel_launch.request import LaunchRequest

# Under which schedulers tell a job its number.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class ElasticLauncher(BuiltInLauncher):
    """Starts the ranks of this machine as all launchers do, and beside them a program that meets the other machines.

    The ranks in the plan are those that the machines agree on where ``--machine_rank`` names each.
    """

    name: ClassVar[str] = "elastic"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        run_id = _run_id(request)
        port = (asked_port(request) or None) if request.machine_rank == 0 else None
        rendezvous = program_of(
            request.interpreter,
            cwd=request.cwd,
            backend=request.value("rdzv_backend"),
            endpoint=f"{meeting_address(request)}:{meeting_port(request)}",
            run_id=run_id,
            conf=request.value("rdzv_conf"),
            num_machines=request.num_machines,
            machine_rank=request.machine_rank,
            num_processes=request.num_local_processes,
            monitor_interval=request.value("monitor_interval"),
            is_verbose=request.value("debug_mode"),
        )
        return plan_here(
            self.name,
            request,
            port=port,
            master_addr=meeting_address(request),
            run_id=run_id,
            rendezvous=rendezvous,
        )

    def run(self, plan: LaunchPlan) -> int:
        if plan.port is not None:
            with held_port(plan.port):  # only to refuse a port that is taken before anything starts
                pass
        return run_here(plan)


def _run_id(request: LaunchRequest) -> str:
    """Return what all machines of this job, and no others, call it: several jobs may share one etcd."""
    environ = request.machine.environ
    if request.value("rdzv_id"):
        return str(request.value("rdzv_id"))
    of_scheduler = [environ[name] for name in _JOB_VARIABLES if name in environ]
    if of_scheduler:
        return f"accel-{of_scheduler[0]}"
    if request.value("rdzv_backend") in ("static", "c10d"):
        return "accel"  # the meeting place is a port of the first machine, which is the job's own
    told = "\0".join((getpass.getuser(), str(request.num_processes), *request.command))
    return f"accel-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
