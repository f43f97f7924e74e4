"""The ranks of this machine: planned as processes with torchrun's variables, run, and reported on."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from accel_launch.cpu_cores import threads_of
from accel_launch.launchers.outer_task import variables_of_outer_run
from accel_launch.launchers.ports import held_port
from accel_launch.messages import warn
from accel_launch.plan import LaunchPlan, LogSettings, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.logs import log_folder
from accel_launch.processes.supervision import run_processes
from accel_launch.reports.rendering import tell
from accel_launch.reports.run_report import RankEnding, make_report
from accel_launch.request import LaunchRequest
from accel_state.environment import snapshot
from accel_state.errors import ConfigError
from accel_state.open_files import raise_open_file_limit

# Variables of torchrun's that keep what a person has set.
_LEFT_ALONE = ("TORCH_NCCL_ASYNC_ERROR_HANDLING",)


def plan_here(
    name: str,
    request: LaunchRequest,
    *,
    port: int | None,
    master_addr: str = "127.0.0.1",
    run_id: str = "none",
    rendezvous: ProcessPlan | None = None,
) -> LaunchPlan:
    """Return the plan of a launcher that starts the ranks of this machine itself.

    Raises:
        ConfigError: If the machine has fewer accelerators than ranks.
    """
    check_accelerators(request)
    _check_open_files(request.num_local_processes)
    tee: str | None = request.value("tee")
    folder: str | None = request.value("log_dir")
    max_restarts: int = request.value("max_restarts")
    logs = LogSettings(
        tee or ("0" if folder is None else "3"),
        None if folder is None else request.cwd / folder,
        request.value("role"),
    )
    return LaunchPlan(
        name,
        _ranks_here(request, master_addr=master_addr, run_id=run_id),
        num_ranks=request.num_processes,
        grace_period_s=request.value("grace_period_s"),
        port=port,
        is_quiet=request.is_quiet,
        report=report_file(request),
        max_restarts=max_restarts,
        logs=logs if max_restarts or logs.folder is not None or logs.tee != "0" else None,
        rendezvous=rendezvous,
    )


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


def plan_program(name: str, request: LaunchRequest, program: ProcessPlan, *, num_ranks: int) -> LaunchPlan:
    """Return the plan of a launcher that starts one program here, which is a rank or starts ``num_ranks``."""
    _warn_of_missing_gpus(request)
    return LaunchPlan(
        name,
        (program,),
        num_ranks=num_ranks,
        grace_period_s=request.value("grace_period_s"),
        is_quiet=request.is_quiet,
        report=report_file(request),
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
    """Return the variables by which torchrun tells a rank who it is."""
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
    _warn_of_missing_gpus(request)
    is_shared = request.value("use_cpu") or request.value("share_gpus")
    if gpus and not is_shared and request.num_local_processes > len(gpus):
        raise ConfigError(
            f"`--num_processes` asks for {request.num_local_processes} on this machine, but a process can use only "
            f"{len(gpus)} of its accelerators ({', '.join(gpus)}). Ask for fewer (`--num_processes {len(gpus)}`), add "
            "`--cpu`, or, for tests, let several processes share a GPU (`--share_gpus`)."
        )


def _check_open_files(num_here: int) -> None:
    """Raise the limit of open files for the ranks of this machine, whose output comes through pipes.

    Raises:
        ConfigError: If the hard limit is too low.
    """
    num_files = 4 * num_here + 16
    limit = raise_open_file_limit(num_files)
    if limit < num_files:
        raise ConfigError(
            f"`--num_processes` asks for {num_here} on this machine, for which the launcher needs about {num_files} "
            f"open files, but it may have {limit}. Ask for fewer, or raise the hard limit (`ulimit -Hn`)."
        )


def _warn_of_missing_gpus(request: LaunchRequest) -> None:
    kind = str(request.config.values.get("distributed_type"))
    asked = "--multi_gpu" if request.value("multi_gpu") else f"distributed_type: {kind}"
    is_in_file = kind.startswith("MULTI_") and kind != "MULTI_CPU" and request.engine is None
    is_without = not request.machine.gpus and not request.value("use_cpu")
    if is_without and (is_in_file or request.value("multi_gpu")):
        warn(
            f"`{asked}` asks for GPUs, but none is found on this machine: everything runs on its CPU. "
            "Look at the driver and what a container is given (`accel env`), or add `--cpu`."
        )


def report_file(request: LaunchRequest) -> Path | None:
    """Return the file that the report of this machine goes to, if any.

    Machines often share a folder, so each but the first writes its number into the name:
    ``report.machine-1.json`` beside ``report.json``.
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


def run_here(plan: LaunchPlan, *, prefixes: Sequence[str] | None = None) -> int:
    """Run the processes of a plan on this machine, tell how they ended, and return the exit code."""
    with log_folder(plan.logs) as logs:
        ending = run_processes(
            plan.processes,
            host_environ=snapshot(),
            grace_period_s=plan.grace_period_s,
            prefixes=prefixes,
            restarts=Restarts(plan.max_restarts, logs, plan.rendezvous),
        )
    if not ending.children:  # the machines have not met, and it has been said why
        return 1 if ending.interrupted_by is None else 128 + ending.interrupted_by
    host = socket.gethostname()
    ranks = [
        RankEnding(rank or 0, host, child) for rank, child in zip(ending.ranks, ending.children, strict=True)
    ]
    report = make_report(
        ranks,
        num_ranks=None if plan.rendezvous is None else plan.num_ranks,
        interrupted_by=ending.interrupted_by,
        num_memory_kills=ending.num_memory_kills,
    )
    return tell(report, is_quiet=plan.is_quiet, file=plan.report)
