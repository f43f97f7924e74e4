"""Several machines through DeepSpeed's own runner: pdsh, Open MPI, MVAPICH, MPICH, SLURM, or none."""

from __future__ import annotations

import re
import shlex
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from accel_launch.launchers.local import asked_port, plan_programs, run_here, threads_per_process
from accel_launch.launchers.machines import DEFAULT_PORT
from accel_launch.launchers.relaunch import FORWARDED, is_secret, library_variables, shown_to_all
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.messages import warn
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.request import LaunchRequest
from accel_state.environment import snapshot
from accel_state.errors import ConfigError, NotAvailableError

ENVIRONMENT_FILE = ".deepspeed_env"
# The runner forwards all variables with this prefix, such as MLFLOW_TRACKING_PASSWORD.
_KEPT_FROM_RUNNER = "MLFLOW"
# The runner writes values into a command line for a shell, between double quotes.
_UNSAFE = re.compile(r"[\"$`\\\n]")


@dataclass(frozen=True, slots=True)
class Way:
    """How DeepSpeed reaches the machines: its word for it, and what it can do there.

    With ``counts`` it takes a number of machines and processes, or filters; otherwise its hostfile decides.
    With ``tells_ranks`` it passes them the rendezvous. ``runs_only_scripts`` leaves out modules and programs.
    With ``forwards`` it sends variables; otherwise the command is given on each machine. ``mpi_flags`` are for the
    program in between.
    """

    name: str
    forwards: bool = True
    counts: bool = True
    tells_ranks: bool = True
    runs_only_scripts: bool = False
    mpi_flags: tuple[str, ...] = ()


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "pdsh": Way("pdsh"),
        "openmpi": Way("openmpi", counts=False, tells_ranks=False),
        "mvapich": Way("mvapich", counts=False, tells_ranks=False),
        "mpich": Way("mpich", counts=False, mpi_flags=("-genvnone",)),  # it would send every variable
        "slurm": Way("slurm", tells_ranks=False, runs_only_scripts=True),
        "nossh": Way("nossh", forwards=False),
    }
)


class DeepSpeedLauncher(BuiltInLauncher):
    """Starts DeepSpeed's runner, which starts the ranks of all machines named in its hostfile."""

    name: ClassVar[str] = "deepspeed"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        way = WAYS[request.value("deepspeed_multinode_launcher")]
        if way.forwards and request.named_variables():
            raise ConfigError(
                "DeepSpeed's runner writes variables on command lines, where all users of the machines see them. Use "
                "`--hosts` instead, or leave `--env` out and write them into `.deepspeed_env`."
            )
        environ = _environ(request, way)
        process = ProcessPlan(
            argv=(
                *(*request.interpreter, "-m", "deepspeed.launcher.runner"),
                *_flags(request, way),
                "--no_local_rank",  # the variable has it; scripts need no such argument
                *_kind(request, way),
                *request.command,
            ),
            cwd=request.cwd,
            environ=environ,
            unset=_kept_from_runner(request.machine.environ) if way.forwards else (),
        )
        return plan_programs(
            self.name,
            request,
            [process],
            num_ranks=request.num_processes,
            options={
                "forwarded": _environment_file(environ, request.machine.environ) if way.forwards else "",
                "held_back": ",".join(_held_back(request.machine.environ)) if way.forwards else "",
                "hostfile": request.value("deepspeed_hostfile"),
            },
        )

    def run(self, plan: LaunchPlan) -> int:
        if find_spec("deepspeed") is None:
            raise NotAvailableError(
                "DeepSpeed on several machines needs the package `deepspeed`, which is not installed. Run "
                "`pip install deepspeed`, or use `--deepspeed_multinode_launcher standard`."
            )
        (process,) = plan.processes
        hostfile = process.cwd / plan.options["hostfile"]
        if not hostfile.is_file():  # the runner would train on this machine alone
            raise ConfigError(
                f"`--deepspeed_hostfile` is `{hostfile}`, which does not exist. Write a line such as "
                "`host1 slots=4` into it for each machine."
            )
        held_back = [*process.unset, *filter(None, plan.options.get("held_back", "").split(","))]
        if held_back:
            warn(
                f"{', '.join(f'`{name}`' for name in held_back)} may hold a secret, or what a shell would read, and "
                f"stays on this machine. To send it to the others, write it into `{ENVIRONMENT_FILE}`; DeepSpeed's "
                "runner puts its content on command lines."
            )
        with tempfile.TemporaryDirectory(prefix="accel-deepspeed-") as folder:
            file = Path(folder) / ENVIRONMENT_FILE
            file.touch(mode=0o600)
            file.write_text(plan.options["forwarded"] + _own_lines(process.cwd))
            process = process.with_variables(DS_ENV_FILE=str(file))
            return run_here(replace(plan, processes=(process,)))


def _flags(request: LaunchRequest, way: Way) -> list[str]:
    hostfile = request.value("deepspeed_hostfile")
    if hostfile is None:
        raise ConfigError(
            f"The launcher `{way.name}` of DeepSpeed needs `--deepspeed_hostfile`. For machines on each of which you "
            "give this command, use `--deepspeed_multinode_launcher standard`."
        )
    flags = (
        [f"--launcher={way.name}"] if way.forwards else ["--no_ssh", f"--node_rank={request.machine_rank}"]
    )
    flags += [f"--hostfile={hostfile}", *_machines(request, way)]
    flags += [f"--launcher_args={shlex.join(way.mpi_flags)}"] if way.mpi_flags else []
    address: str | None = request.value("master_addr")
    if not address and not (way.forwards and way.tells_ranks):
        raise ConfigError(
            f"The launcher `{way.name}` of DeepSpeed does not find out where ranks meet. Give `--main_process_ip`."
        )
    flags += [f"--master_addr={address}"] if address else []
    return [*flags, f"--master_port={_port(request)}"]


def _port(request: LaunchRequest) -> int:
    return asked_port(request) or DEFAULT_PORT


def _machines(request: LaunchRequest, way: Way) -> list[str]:
    included = request.value("deepspeed_inclusion_filter")
    excluded = request.value("deepspeed_exclusion_filter")
    if included and excluded:
        raise ConfigError(
            "`--deepspeed_inclusion_filter` and `--deepspeed_exclusion_filter` cannot both be given; choose one."
        )
    if not way.counts:
        if included or excluded:
            raise ConfigError(
                f"The launcher `{way.name}` of DeepSpeed knows no filters: it uses all of its hostfile. Take the "
                "machines out there, or use `--deepspeed_multinode_launcher pdsh`."
            )
        return []
    if included or excluded:
        return [f"--include={included}" if included else f"--exclude={excluded}"]
    return [f"--num_nodes={request.num_machines}", f"--num_gpus={request.num_local_processes}"]


def _kind(request: LaunchRequest, way: Way) -> tuple[str, ...]:
    if request.kind != "script" and way.runs_only_scripts:
        raise ConfigError(
            f"The launcher `{way.name}` of DeepSpeed runs scripts only. Leave `--module` and `--no_python` out."
        )
    return {"script": (), "module": ("--module",), "executable": ("--no_python",)}[request.kind]


def _environ(request: LaunchRequest, way: Way) -> dict[str, str]:
    threads = threads_per_process(request, request.num_local_processes)
    environ = {"OMP_NUM_THREADS": str(threads)} | request.environ()
    if way.tells_ranks:
        return environ
    return environ | {"MASTER_ADDR": request.value("master_addr") or "", "MASTER_PORT": str(_port(request))}


def _kept_from_runner(environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(sorted(name for name in environ if name.startswith(_KEPT_FROM_RUNNER)))


def _environment_file(settings: Mapping[str, str], environ: Mapping[str, str]) -> str:
    """Return what DeepSpeed's runner forwards: our settings, and the variables of libraries."""
    of_libraries = shown_to_all(environ)
    unsafe = {name for name, value in of_libraries.items() if _UNSAFE.search(value)} - set(FORWARDED)
    forwarded = {name: value for name, value in of_libraries.items() if name not in unsafe} | dict(settings)
    for name, value in forwarded.items():
        if _UNSAFE.search(value):
            raise ConfigError(
                f"`{name}` is `{value}`, but DeepSpeed's runner would let a shell on the other machines read it. "
                "Leave out double quotes, backslashes, `$`, backticks and line ends."
            )
    return _as_lines(f"{name}={value}" for name, value in sorted(forwarded.items()))


def _held_back(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables of libraries that the runner would put on a command line, but must not or cannot."""
    found = library_variables(environ).items()
    return tuple(sorted(name for name, value in found if is_secret(name, value) or _UNSAFE.search(value)))


def _own_lines(cwd: Path) -> str:
    """Return what the person has written for DeepSpeed's runner to forward, as it would have found it."""
    name = snapshot().get("DS_ENV_FILE", ENVIRONMENT_FILE)
    files = dict.fromkeys((Path.home() / name, cwd / name))
    texts = [file.read_text(encoding="utf-8") for file in files if file.is_file()]
    return _as_lines(line for text in texts for line in text.splitlines() if "=" in line)


def _as_lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
