"""One process per rank through ``mpirun``: Open MPI, MPICH, Intel MPI or MVAPICH, which differ by a table."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar

from accel_launch.launchers.local import (
    asked_port,
    at_port,
    held_port,
    plan_programs,
    run_here,
    threads_per_process,
)
from accel_launch.launchers.machines import DEFAULT_PORT
from accel_launch.launchers.relaunch import public_variables, shown_to_all
from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.launchers.submission import require_program
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_launch.processes.parent_death import tied_to_starter
from accel_launch.request import LaunchRequest
from accel_state.environment import snapshot
from accel_state.errors import ConfigError, NotAvailableError

_PROGRAM = "mpirun"
_NOTE = "When the run starts, the MPI that `mpirun --version` shows adds its options for hosts and variables."


@dataclass(frozen=True, slots=True)
class Implementation:
    """What one MPI calls things. ``sign`` is a word of its ``mpirun --version``."""

    sign: str
    hostfile: str
    processes_per_host: str
    forward: str  # for the names of variables, or `NAME VALUE` for one
    forwards_values: bool = False
    forward_no_others: tuple[str, ...] = ()  # where the default is to send every variable
    always: tuple[str, ...] = ()
    on_one_machine: tuple[str, ...] = ()


def _hydra(sign: str) -> Implementation:
    """Return an implementation that starts ranks through MPICH's process manager, Hydra.

    By ``-genvlist`` the names alone would do, but MPICH 4.0.2 then loses the last variable of the environment.
    """
    return Implementation(sign, "-f", "-ppn", "-genv", forwards_values=True, forward_no_others=("-genvnone",))


IMPLEMENTATIONS: Mapping[str, Implementation] = MappingProxyType(
    {
        "Open MPI": Implementation(
            "Open MPI",
            hostfile="--hostfile",
            processes_per_host="-N",
            forward="-x",
            always=("--allow-run-as-root", "--bind-to", "none"),
            on_one_machine=("--oversubscribe",),
        ),
        "Intel MPI": _hydra("Intel(R) MPI"),
        "MVAPICH": _hydra("MVAPICH"),
        "MPICH": _hydra("HYDRA"),
    }
)


class MPILauncher(BuiltInLauncher):
    """Starts ``mpirun``, which starts the ranks; they read who they are from its variables."""

    name: ClassVar[str] = "mpi"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        """Plan what all implementations have in common; `with_options_of` adds the rest when the run starts.

        Raises:
            ConfigError: If several machines are asked for without the address of rank 0.
        """
        hostfile: str | None = request.value("mpirun_hostfile")
        environ = _environ(request, is_on_machines=hostfile is not None)
        options = {"note": _NOTE}
        if hostfile is not None:
            options["hostfile"] = hostfile
            if request.num_machines > 1:
                options["processes_per_host"] = str(request.num_local_processes)
        program = tied_to_starter(request.program())
        return plan_programs(
            self.name,
            request,
            [ProcessPlan((_PROGRAM, "-n", str(request.num_processes), *program), request.cwd, environ)],
            num_ranks=request.num_processes,
            port=int(environ["MASTER_PORT"]) if "MASTER_PORT" in environ else None,
            options=options,
            shown_option="note",
        )

    def run(self, plan: LaunchPlan) -> int:
        mpi = installed_implementation()
        with nullcontext(plan.port) if plan.port is not None else held_port(None) as port:
            return run_here(with_options_of(mpi, at_port(plan, port), environ=snapshot()))


def with_options_of(mpi: Implementation, plan: LaunchPlan, *, environ: Mapping[str, str]) -> LaunchPlan:
    """Return a plan of `MPILauncher` with the options of one implementation of MPI.

    Raises:
        ConfigError: If this implementation would show a secret among the private variables to other users.
    """
    (process,) = plan.processes
    hostfile, per_host = plan.options.get("hostfile"), plan.options.get("processes_per_host")
    named = _named_variables(mpi, process.private, hostfile)
    argv = (
        *(_PROGRAM, *mpi.always, "-n", str(plan.num_ranks)),
        *(mpi.on_one_machine if hostfile is None else (mpi.hostfile, hostfile)),
        *((mpi.processes_per_host, per_host) if per_host is not None else ()),
        *_forwarded(mpi, {**shown_to_all(environ), **process.environ, **named}),
        *process.argv[3:],  # what follows `mpirun -n N`
    )
    return replace(plan, processes=(replace(process, argv=argv),))


def installed_implementation() -> Implementation:
    """Return the implementation of the ``mpirun`` that is installed.

    Raises:
        NotAvailableError: If there is none, or it is none that we know.
    """
    otherwise = "Install Open MPI, MPICH or Intel MPI, or leave the flag out."
    require_program(_PROGRAM, asked_by="--use_mpirun", otherwise=otherwise)
    told = subprocess.run([_PROGRAM, "--version"], capture_output=True, text=True, timeout=30, check=False)
    return implementation_of(told.stdout + told.stderr)


def implementation_of(version_text: str) -> Implementation:
    """Return the implementation whose ``mpirun --version`` prints ``version_text``."""
    for mpi in IMPLEMENTATIONS.values():
        if mpi.sign in version_text:
            return mpi
    known = ", ".join(IMPLEMENTATIONS)
    first_line = version_text.strip().partition("\n")[0]
    raise NotAvailableError(
        f"`mpirun` says it is `{first_line}`, which is none of those known: {known}. "
        "Put one of these first on the `PATH`."
    )


def _environ(request: LaunchRequest, *, is_on_machines: bool) -> dict[str, str]:
    threads = threads_per_process(request, request.num_local_processes)
    environ = {"OMP_NUM_THREADS": str(threads)} | request.environ()
    if request.is_given("mpirun_ccl"):
        environ["CCL_WORKER_COUNT"] = str(request.value("mpirun_ccl"))
    address: str | None = request.value("master_addr")
    if is_on_machines and request.num_machines > 1 and not address:
        raise ConfigError(
            "`--mpirun_hostfile` with several machines needs `--main_process_ip`, where ranks meet."
        )
    environ["MASTER_ADDR"] = address or "127.0.0.1"
    port = asked_port(request) or (DEFAULT_PORT if is_on_machines else None)
    return environ if port is None else environ | {"MASTER_PORT": str(port)}


def _named_variables(
    mpi: Implementation, named: Mapping[str, str], hostfile: str | None
) -> Mapping[str, str]:
    """Return what `mpirun` is to forward of ``--env``; ranks on this machine have it from their environment."""
    if not mpi.forwards_values:
        return named
    return public_variables(
        named if hostfile is not None else {},
        where="this `mpirun` would write its value on command lines",
        otherwise="Use Open MPI or `--hosts`, or set it in the start-up files of the machines' shells.",
    )


def _forwarded(mpi: Implementation, environ: Mapping[str, str]) -> list[str]:
    words = list(mpi.forward_no_others)
    for name, value in sorted(environ.items()):
        words += [mpi.forward, name, value] if mpi.forwards_values else [mpi.forward, name]
    return words
