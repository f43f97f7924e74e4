"""Several machines that agree on their ranks whenever these start: ``--rdzv_backend c10d``, or ``--max_restarts``."""

from __future__ import annotations

import getpass
import hashlib
from typing import ClassVar

from accel_launch.launchers.machines import meeting_address, meeting_port
from accel_launch.launchers.ports import held_port
from accel_launch.launchers.ranks import asked_port, check_accelerators, plan_here, plan_ranks, run_here
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest

# Under which schedulers tell a job its number.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class ElasticLauncher(BuiltInLauncher):
    """Starts the ranks of this machine as all launchers do, and beside them a program that meets the other machines.

    The ranks in the plan are those that the machines agree on where ``--machine_rank`` names each.
    """

    name: ClassVar[str] = "elastic"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        check_accelerators(request)
        run_id = _run_id(request)
        ranks = plan_ranks(
            request,
            num_here=request.num_local_processes,
            machine_rank=request.machine_rank,
            master_addr=meeting_address(request),
            run_id=run_id,
        )
        port = (asked_port(request) or None) if request.machine_rank == 0 else None
        return plan_here(self.name, request, ranks, port=port, rendezvous=_rendezvous(request, run_id))

    def run(self, plan: LaunchPlan) -> int:
        if plan.port is not None:
            with held_port(plan.port):  # only to refuse a port that is taken before anything starts
                pass
        return run_here(plan)


def _rendezvous(request: LaunchRequest, run_id: str) -> ProcessPlan:
    conf: str | None = request.value("rdzv_conf")
    return ProcessPlan(
        (
            *request.interpreter,
            "-P",  # a `torch.py` beside the script is not torch
            "-m",
            "accel_launch.rendezvous",
            f"--backend={request.value('rdzv_backend')}",
            f"--endpoint={meeting_address(request)}:{meeting_port(request)}",
            f"--id={run_id}",
            *([] if conf is None else [f"--conf={conf}"]),
            f"--num-machines={request.num_machines}",
            f"--machine-rank={request.machine_rank}",
            f"--num-processes={request.num_local_processes}",
            f"--monitor-interval={request.value('monitor_interval')}",
            *(["--verbose"] if request.value("debug_mode") else []),
        ),
        request.cwd,
        # The ranks have a store of their own: in one that they share with torch's rendezvous, keys of the attempt
        # before are left, and the next one hangs on them now and then (seen with torch 2.13).
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )


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
