"""Several machines that agree on their ranks whenever these start: ``--rdzv_backend c10d``, or ``--max_restarts``."""

from __future__ import annotations

import getpass
import hashlib
import socket
from dataclasses import replace
from typing import ClassVar

from accel_launch.launchers.local import asked_port, held_port, plan_here, run_here
from accel_launch.launchers.machines import meeting_address, meeting_port
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.child import ChildEnding
from accel_launch.request import VARIABLES_OF_A_RANK, LaunchRequest

# Under which schedulers tell a job its number.
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID")


class ElasticLauncher(BuiltInLauncher):
    """Starts torch's elastic agent, as torchrun does, which starts the ranks of this machine."""

    name: ClassVar[str] = "elastic"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        meeting = f"{meeting_address(request)}:{meeting_port(request)}"
        here = plan_here(
            self.name, request, port=(asked_port(request) or None) if request.machine_rank == 0 else None
        )
        backend, conf = meeting_settings(
            request.value("rdzv_backend"), request.machine_rank, request.value("rdzv_conf") or ""
        )
        flags = {
            "nnodes": request.num_machines,
            "nproc_per_node": request.num_local_processes,
            "rdzv_backend": backend,
            "rdzv_endpoint": meeting,
            "rdzv_id": _run_id(request),
            "rdzv_conf": conf,
            "max_restarts": here.max_restarts,
            "monitor_interval": request.value("monitor_interval"),
            "role": request.value("role"),
            "tee": None if here.logs is None or here.logs.tee == "0" else here.logs.tee,
            "log_dir": None if here.logs is None else here.logs.folder,
        }
        if here.shown_ranks is not None:
            shown = [
                place for place, process in enumerate(here.processes) if process.rank in here.shown_ranks
            ]
            flags["local_ranks_filter"] = ",".join(map(str, shown)) or None
        if here.prefix:
            flags["tee"] = "3"
        first = here.processes[0]
        agent = (
            *request.interpreter,
            "-P",  # a `torch.py` beside the script is not torch
            "-m",
            "accel_launch.elastic_agent",
            *(f"--{name}={value}" for name, value in flags.items() if value is not None),
            "--no_python",
            *first.argv,
        )
        environ = {name: value for name, value in first.environ.items() if name not in VARIABLES_OF_A_RANK}
        if here.prefix:
            environ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = here.prefix
        process = ProcessPlan(agent, first.cwd, environ, VARIABLES_OF_A_RANK)
        return replace(here, processes=(process,), prefix="", max_restarts=0, logs=None)

    def run(self, plan: LaunchPlan) -> int:
        if plan.port is not None:
            with held_port(plan.port):  # only to refuse a port that is taken before anything starts
                pass
        return run_here(plan, endings_of=_endings)


def _endings(agent: ChildEnding) -> list[ChildEnding]:
    """Return how ranks failed by the agent's message; torch prefixes the traceback of each that has met the others."""
    from accel_launch.remote_protocol import Endings

    endings = Endings.last_in(agent.last_lines)
    if endings is None:  # with 1 it has shown why it did not start them
        return [] if agent.return_code == 1 else [agent]
    return [
        replace(
            each,
            last_lines=tuple(line for line in agent.last_lines if line.startswith(f"[rank{each.rank}]:")),
        )
        for each in endings.ranks
    ]


def meeting_settings(backend: str, machine_rank: int, conf: str) -> tuple[str, str]:
    """Return the name and the settings by which torch's elastic agent meets the agents of other machines."""
    if backend == "static":  # machines that know their ranks still have to agree on each restart
        return "accel-static", ",".join(filter(None, (conf, f"rank={machine_rank}")))
    if backend == "c10d" and "is_host=" not in conf:
        # torch guesses by the machine's name, which need not lead to the address that was given.
        conf = ",".join(filter(None, (conf, f"is_host={str(machine_rank == 0).lower()}")))
    return backend, conf


def address_towards(endpoint: str) -> str | None:
    """Return the address of this machine on the way to ``endpoint``; None if that cannot be told."""
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))  # of a datagram socket: nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


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
