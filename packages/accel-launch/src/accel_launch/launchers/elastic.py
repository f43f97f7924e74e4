"""Ranks that may start again or meet elastically, through torch's agent (``--max_restarts``, ``c10d``, ``--tee``)."""

from __future__ import annotations

import getpass
import hashlib
import math
from typing import ClassVar

from accel_launch.launchers.inheritance import variables_of_outer_run
from accel_launch.launchers.machines import meeting_address, meeting_port
from accel_launch.launchers.ports import held_port
from accel_launch.launchers.ranks import asked_port, check_accelerators, report_file, threads_per_process
from accel_launch.launchers.routes import route
from accel_launch.messages import complain
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.ending import describe_ending, exit_code_for_shell
from accel_launch.processes.supervision import run_processes
from accel_launch.request import LaunchRequest
from accel_state.environment import snapshot

# The agent ends the ranks within the grace period; only then is it ended itself.
_SLACK_S = 1.5
# Under which schedulers tell a job its number.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")
# Settings that torch's agent knows by the same name.
_AGENT_FLAGS = ("max_restarts", "monitor_interval", "role", "tee", "log_dir")


class ElasticLauncher:
    """Starts an agent that starts the ranks of this machine; this process never imports torch."""

    name: ClassVar[str] = "elastic"

    def accepts(self, request: LaunchRequest) -> bool:
        return route(request) == self.name

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        check_accelerators(request)
        grace_period_s: float = request.value("grace_period_s")
        report = report_file(request)
        process = ProcessPlan(
            argv=(
                *request.interpreter,
                "-P",  # a `torch.py` beside the script is none of the agent's business
                "-m",
                "accel_launch.elastic_agent",
                *(["--verbose"] if request.value("debug_mode") else []),
                *(["--quiet"] if request.is_quiet else []),
                *([f"--report={report}"] if report is not None else []),
                *self._agent_flags(request, grace_period_s),
                "--",
                *request.program("-u"),
            ),
            cwd=request.cwd,
            environ=self._environ(request),
            unset=variables_of_outer_run(request.machine.environ),
        )
        return LaunchPlan(
            self.name,
            (process,),
            num_ranks=request.num_processes,
            grace_period_s=grace_period_s,
            port=(asked_port(request) or None) if request.machine_rank == 0 else None,
            is_quiet=request.is_quiet,
            report=report,
        )

    def run(self, plan: LaunchPlan) -> int:
        if plan.port is not None:
            with held_port(plan.port):  # only to refuse a port that is taken before anything starts
                pass
        ending = run_processes(
            plan.processes, host_environ=snapshot(), grace_period_s=plan.grace_period_s + _SLACK_S
        )
        return_code = ending.children[0].return_code
        if return_code < 0 and ending.interrupted_by is None:
            complain(f"The process that watches the ranks {describe_ending(return_code)}.")
        return exit_code_for_shell(return_code)

    def _agent_flags(self, request: LaunchRequest, grace_period_s: float) -> list[str]:
        return [
            f"--nproc-per-node={request.num_local_processes}",
            f"--nnodes={request.num_machines}",
            *self._rendezvous(request),
            *self._rendezvous_settings(request),
            *(
                f"--{name.replace('_', '-')}={request.value(name)}"
                for name in _AGENT_FLAGS
                if request.is_given(name)
            ),
            f"--shutdown-timeout={max(1, math.ceil(grace_period_s))}",
        ]

    def _rendezvous(self, request: LaunchRequest) -> list[str]:
        backend, port = request.value("rdzv_backend"), asked_port(request)
        if request.num_machines == 1:
            if not port:
                return ["--standalone"]  # the agent takes a free port and tells the ranks
            address = "127.0.0.1"
        else:
            address, port = meeting_address(request), meeting_port(request)
        if backend == "static":
            rank = request.machine_rank
            return [
                "--rdzv-backend=static",
                f"--node-rank={rank}",
                f"--master-addr={address}",
                f"--master-port={port}",
            ]
        return [
            f"--rdzv-backend={backend}",
            f"--rdzv-endpoint={address}:{port}",
            f"--rdzv-id={_job_id(request)}",
        ]

    def _rendezvous_settings(self, request: LaunchRequest) -> list[str]:
        asked: str = request.value("rdzv_conf") or ""
        if request.value("rdzv_backend") == "c10d" and request.num_machines > 1 and "is_host" not in asked:
            # torch guesses by the machine's name, which need not lead to the address that was given.
            is_host = "true" if request.machine_rank == 0 else "false"
            asked = ",".join(part for part in (asked, f"is_host={is_host}") if part)
        return [f"--rdzv-conf={asked}"] if asked else []

    def _environ(self, request: LaunchRequest) -> dict[str, str]:
        threads = threads_per_process(request, request.num_local_processes)
        environ = {"OMP_NUM_THREADS": str(threads)} | request.environ()
        if request.value("max_restarts"):
            # The store that agent and ranks share keeps keys of the attempt before, and the next one hangs on
            # them now and then (seen with torch 2.13).
            environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return environ


def _job_id(request: LaunchRequest) -> str:
    """Return what all machines of this job, and no others, call it: several jobs may share one etcd."""
    environ = request.machine.environ
    if request.value("rdzv_id"):
        return str(request.value("rdzv_id"))
    of_scheduler = [environ[name] for name in _JOB_VARIABLES if name in environ]
    if of_scheduler:
        return f"accel-{of_scheduler[0]}"
    if request.value("rdzv_backend") == "c10d":
        return "accel"  # its meeting place is a port of rank 0's machine, which is the job's own
    told = "\0".join((getpass.getuser(), str(request.num_processes), *request.command))
    return f"accel-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
