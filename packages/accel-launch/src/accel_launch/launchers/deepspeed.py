"""Several machines through DeepSpeed's own runner: pdsh, Open MPI, MVAPICH, MPICH, SLURM, or none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

from accel_launch.launchers.machines import DEFAULT_PORT
from accel_launch.launchers.ranks import asked_port, report_file, run_here
from accel_launch.launchers.routes import route
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest
from accel_state.errors import ConfigError

ENVIRONMENT_FILE = ".deepspeed_env"
# What else of this environment the other machines need; anything not named here stays here.
FORWARDED = (
    "HF_HOME",
    "LD_LIBRARY_PATH",
    "NCCL_DEBUG",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_P2P_DISABLE",
    "NCCL_SOCKET_IFNAME",
    "GLOO_SOCKET_IFNAME",
    "PATH",
    "PYTHONPATH",
)
# DeepSpeed's words for the ways we know.
_WAYS: Mapping[str, str] = MappingProxyType(
    {"pdsh": "pdsh", "openmpi": "openmpi", "mvapich": "mvapich", "mpich": "mpich", "slurm": "slurm"}
)


class DeepSpeedLauncher:
    """Starts ``deepspeed``, which starts the ranks of all machines named in its hostfile."""

    name: ClassVar[str] = "deepspeed"

    def accepts(self, request: LaunchRequest) -> bool:
        return route(request) == self.name

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        environ = request.environ()
        process = ProcessPlan(
            argv=("deepspeed", *_flags(request), *_kind(request), *request.command),
            cwd=request.cwd,
            environ=environ,
        )
        return LaunchPlan(
            self.name,
            (process,),
            num_ranks=request.num_processes,
            grace_period_s=request.value("grace_period_s"),
            is_quiet=request.is_quiet,
            report=report_file(request),
            options={"forwarded": _environment_file(environ, request.machine.environ)},
        )

    def run(self, plan: LaunchPlan) -> int:
        (process,) = plan.processes
        file = process.cwd / ENVIRONMENT_FILE
        text = plan.options["forwarded"]
        if file.exists() and file.read_text() != text:
            raise ConfigError(
                f"`{file}` is there already, and the DeepSpeed runner would forward what it says. Remove it; the "
                "variables of this run would be written there."
            )
        file.write_text(text)
        file.chmod(0o600)
        try:
            return run_here(plan)
        finally:
            file.unlink(missing_ok=True)


def _flags(request: LaunchRequest) -> list[str]:
    way = request.value("deepspeed_multinode_launcher")
    hostfile = request.value("deepspeed_hostfile")
    if hostfile is None and way != "nossh":
        raise ConfigError(
            f"The launcher `{way}` of DeepSpeed needs `--deepspeed_hostfile`. For machines on each of which you give "
            "this command, use `--deepspeed_multinode_launcher standard`."
        )
    flags = (
        ["--no_ssh", f"--node_rank={request.machine_rank}"]
        if way == "nossh"
        else [f"--launcher={_WAYS[way]}"]
    )
    flags += [] if hostfile is None else [f"--hostfile={hostfile}"]
    included = request.value("deepspeed_inclusion_filter")
    excluded = request.value("deepspeed_exclusion_filter")
    if included and excluded:
        raise ConfigError(
            "`--deepspeed_inclusion_filter` and `--deepspeed_exclusion_filter` cannot both be given; choose one."
        )
    if included or excluded:
        flags.append(f"--include={included}" if included else f"--exclude={excluded}")
    else:
        flags += [f"--num_nodes={request.num_machines}", f"--num_gpus={request.num_local_processes}"]
    if request.value("master_addr"):
        flags.append(f"--master_addr={request.value('master_addr')}")
    return [*flags, f"--master_port={asked_port(request) or DEFAULT_PORT}"]


def _kind(request: LaunchRequest) -> tuple[str, ...]:
    return {"script": (), "module": ("--module",), "executable": ("--no_python",)}[request.kind]


def _environment_file(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return what DeepSpeed's runner forwards: our settings, and what is on the list."""
    forwarded = {name: environ[name] for name in FORWARDED if name in environ} | dict(settings)
    lines = [f"{name}={value}" for name, value in sorted(forwarded.items()) if "\n" not in value]
    return "\n".join(lines) + "\n"
