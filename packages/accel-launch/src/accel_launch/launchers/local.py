"""The ranks of this machine: planned as processes with torchrun's variables, run at a port, and reported on."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from accel_launch.launchers.selection import BuiltInLauncher
from accel_launch.machine import threads_of
from accel_launch.plan import LaunchPlan, LogSettings, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.child import ChildEnding
from accel_launch.processes.output import log_folder
from accel_launch.processes.supervision import run_processes
from accel_launch.report import tell
from accel_launch.request import LaunchRequest, variables_of_outer_run
from accel_state.environment import snapshot
from accel_state.errors import ConfigError, LaunchError
from accel_state.open_files import raise_open_file_limit

# Variables of torchrun's that keep what a person has set.
_LEFT_ALONE = ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)
# The files that the launcher has open for a rank's output and the end of its process, and others.
_FILES_OF_RANK, _OTHER_FILES = 4, 16
# Elsewhere two sockets cannot be bound to one port, unless both ask for more than torch's store does.
_SHARES_PORTS = sys.platform == "linux"


class LocalLauncher(BuiltInLauncher):
    """Starts the ranks, one for each accelerator."""

    name: ClassVar[str] = "local"

    def plan(self, request: LaunchRequest) -> LaunchPlan:
        return plan_here(self.name, request, port=asked_port(request) or None)

    def run(self, plan: LaunchPlan) -> int:
        return run_with_port(plan)


def plan_here(
    name: str,
    request: LaunchRequest,
    *,
    port: int | None,
    master_addr: str = "127.0.0.1",
    run_id: str = "none",
) -> LaunchPlan:
    """Return the plan of a launcher that starts the ranks of this machine.

    Raises:
        ConfigError: If the machine has fewer accelerators than ranks, or may not open files enough for so many.
    """
    check_accelerators(request)
    _check_open_files(request)
    return LaunchPlan(
        name,
        _ranks_here(request, master_addr=master_addr, run_id=run_id),
        **output_settings(request),
        num_ranks=request.num_processes,
        grace_period_s=request.value("grace_period_s"),
        port=port,
        is_quiet=request.is_quiet,
        report=report_file(request),
    )


def output_settings(request: LaunchRequest) -> dict[str, Any]:
    """Return the fields of a plan for restarts, and for the ranks' output on the screen and in files."""
    tee: str | None = request.value("tee")
    folder: str | None = request.value("log_dir")
    max_restarts: int = request.value("max_restarts")
    logs = LogSettings(
        tee or ("0" if folder is None else "3"),
        None if folder is None else request.cwd / folder,
        request.value("role"),
    )
    return {
        "max_restarts": max_restarts,
        "prefix": "[rank${rank}] " if request.value("prefix") else "",
        "shown_ranks": request.value("show_ranks"),
        "logs": logs if max_restarts or logs.folder is not None or logs.tee != "0" else None,
    }


def check_shown_ranks(plan: LaunchPlan) -> LaunchPlan:
    """Return the plan.

    Raises:
        ConfigError: If the output of a rank is to be shown that the run does not have.
    """
    last = max(plan.shown_ranks or (0,))
    if plan.num_ranks and last >= plan.num_ranks:
        raise ConfigError(
            f"`--show_ranks` names rank {last}, but the ranks of this run go from 0 to {plan.num_ranks - 1}. "
            "Name some of these."
        )
    return plan


def _ranks_here(request: LaunchRequest, *, master_addr: str, run_id: str) -> tuple[ProcessPlan, ...]:
    num_here = request.num_local_processes
    threads = {"OMP_NUM_THREADS": str(threads_per_process(request, num_here))}
    of_outer_run = variables_of_outer_run(request.machine.environ)
    processes = []
    for local_rank in range(num_here):
        rank = request.machine_rank * num_here + local_rank
        own = rank_variables(
            rank=rank,
            world_size=request.num_processes,
            local_rank=local_rank,
            local_world_size=num_here,
            machine_rank=request.machine_rank,
            num_machines=request.num_machines,
            role=request.value("role"),
            max_restarts=request.value("max_restarts"),
            run_id=run_id,
        )
        own |= {
            name: request.machine.environ[name] for name in _LEFT_ALONE if name in request.machine.environ
        }
        environ = threads | request.environ() | own | {"MASTER_ADDR": master_addr}
        unset = tuple(name for name in of_outer_run if name not in environ and name != "MASTER_PORT")
        processes.append(ProcessPlan(request.program(), request.cwd, environ, unset, rank=rank))
    return tuple(processes)


def plan_programs(
    name: str, request: LaunchRequest, programs: Iterable[ProcessPlan], *, num_ranks: int, **rest: Any
) -> LaunchPlan:
    """Return the plan of a launcher whose programs are the ranks or start ``num_ranks``; ``rest`` is other fields."""
    return LaunchPlan(
        name,
        tuple(programs),
        num_ranks=num_ranks,
        grace_period_s=request.value("grace_period_s"),
        is_quiet=request.is_quiet,
        report=report_file(request),
        **rest,
    )


def asked_port(request: LaunchRequest) -> int | None:
    """Return the port that was asked for; that of a run around this one was not meant for it."""
    setting = request.settings["master_port"]
    is_of_outer_run = setting.source == "environment" and variables_of_outer_run(request.machine.environ)
    return None if is_of_outer_run else setting.value


def rank_variables(
    *,
    rank: int,
    world_size: int,
    local_rank: int,
    local_world_size: int,
    machine_rank: int,
    num_machines: int,
    role: str = "default",
    max_restarts: int = 0,
    run_id: str = "none",
) -> dict[str, str]:
    """Return the variables that identify a rank, as torchrun sets them."""
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": local_world_size,
        "GROUP_RANK": machine_rank,
        "GROUP_WORLD_SIZE": num_machines,
        "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": world_size,
        "TORCHELASTIC_MAX_RESTARTS": max_restarts,
        "TORCHELASTIC_RESTART_COUNT": 0,
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": 1,
    }
    # Rank 0 is where the ranks meet; they share no store with whoever starts them.
    words = {"ROLE_NAME": role, "TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    return {name: str(number) for name, number in numbers.items()} | words


def threads_per_process(request: LaunchRequest, num_here: int) -> int:
    """Return the number of CPU threads of each rank: as asked for, else what `threads_of` gives it."""
    asked: int | None = request.value("num_cpu_threads_per_process")
    has_accelerator = bool(request.machine.gpus) or request.engine == "XLA"
    is_on_cpu = request.value("use_cpu") or not has_accelerator
    return asked or threads_of(request.machine.num_cpu_cores, num_ranks=num_here, is_on_cpu=is_on_cpu)


def check_accelerators(request: LaunchRequest) -> None:
    """Refuse more ranks on this machine than it has accelerators; if it has none, they run on the CPU.

    Raises:
        ConfigError: With the two numbers.
    """
    gpus = request.machine.gpus
    is_shared = request.value("use_cpu") or request.value("share_gpus")
    if gpus and not is_shared and request.num_local_processes > len(gpus):
        raise ConfigError(
            f"`--num_processes` asks for {request.num_local_processes} on this machine, but a process can use only "
            f"{len(gpus)} of its accelerators ({', '.join(gpus)}). Ask for fewer (`--num_processes {len(gpus)}`), add "
            "`--cpu`, or, for tests, let several processes share a GPU (`--share_gpus`)."
        )


def _check_open_files(request: LaunchRequest) -> None:
    """Refuse more ranks on this machine than their output has pipes for.

    Raises:
        ConfigError: If the hard limit of open files is too low.
    """
    num_here, limit = request.num_local_processes, request.machine.max_open_files
    if limit < (num_files := _FILES_OF_RANK * num_here + _OTHER_FILES):
        raise ConfigError(
            f"`--num_processes` asks for {num_here} on this machine, for which the launcher needs about {num_files} "
            f"open files, but it may have {limit}. Ask for fewer, or raise the hard limit (`ulimit -Hn`)."
        )


def report_file(request: LaunchRequest) -> Path | None:
    """Return the file that the report of this machine goes to, if any.

    Machines often share a folder, so each but the first writes its number into the name:
    ``report.machine-1.json`` next to ``report.json``.
    """
    asked: str | None = request.value("report")
    if asked is None:
        return None
    file = request.cwd / asked
    if request.machine_rank == 0:
        return file
    return file.with_name(f"{file.stem}.machine-{request.machine_rank}{file.suffix}")


def run_with_port(plan: LaunchPlan) -> int:
    """Run the ranks of a plan whose port belongs to this machine."""
    with held_port(plan.port) as port:
        return run_here(at_port(plan, port))


def at_port(plan: LaunchPlan, port: int) -> LaunchPlan:
    """Return the plan with processes that meet at ``port``."""
    processes = tuple(process.with_variables(MASTER_PORT=str(port)) for process in plan.processes)
    return replace(plan, processes=processes)


def run_here(
    plan: LaunchPlan,
    *,
    prefixes: Sequence[str] | None = None,
    endings_of: Callable[[ChildEnding], Sequence[ChildEnding]] | None = None,
) -> int:
    """Run the processes of a plan on this machine, report how they ended, and return the exit code.

    ``endings_of`` returns how the ranks ended that a process has started; each is a rank without it.
    """
    raise_open_file_limit(_FILES_OF_RANK * len(plan.processes) + _OTHER_FILES)
    with log_folder(plan.logs) as logs:
        ending = run_processes(
            plan.processes,
            host_environ=snapshot(),
            grace_period_s=plan.grace_period_s,
            prefixes=prefixes or [plan.prefix] * len(plan.processes),
            restarts=Restarts(plan.max_restarts, logs, plan.shown_ranks, endings_of is not None),
        )
    ranks = ending.children
    if endings_of is not None:
        ranks = tuple(rank for child in ranks for rank in endings_of(child))
    if not ranks:  # as after a signal at the start
        return 1 if ending.interrupted_by is None else 128 + ending.interrupted_by
    return tell(
        plan,
        ranks,
        num_ranks=None if endings_of is None else plan.num_ranks,
        interrupted_by=ending.interrupted_by,
        num_memory_kills=ending.num_memory_kills,
    )


@contextmanager
def held_port(port: int | None, *, asked_with: str = "--main_process_port") -> Iterator[int]:
    """Yield ``port``, or a free one for None, reserved during the block.

    On Linux it is bound but not listened to, and marked as reusable, so that rank 0 can still take it. Elsewhere it
    is not reserved, and another process may take it before rank 0 does.

    Raises:
        LaunchError: If ``port`` is taken; it names what it was ``asked_with``.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind(("", port or 0))
        except OSError as error:
            raise LaunchError(
                f"`{asked_with}` is {port}, but that port cannot be used: {error.strerror}. "
                "Choose another, or 0 for one that is free."
            ) from error
        found: int = holder.getsockname()[1]
        if _SHARES_PORTS:
            yield found
            return
    yield found


def free_port() -> int:
    """Return a port that is free at the moment."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
