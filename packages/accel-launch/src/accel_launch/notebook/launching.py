"""Calling a function in several processes, from a notebook or to try it out on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accel_launch.launchers.local import held_port
from accel_launch.machine import find_accelerators
from accel_launch.notebook.fork_checks import check_gpus_survive_a_fork, check_no_accelerator
from accel_launch.notebook.ranks import run_forks
from accel_launch.notebook.tpu import run_on_tpu
from accel_launch.processes.supervision import require_fork
from accel_state.environment import find_setting, patch_environment, snapshot
from accel_state.errors import ConfigError


def notebook_launcher(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    num_processes: int | None = None,
    mixed_precision: str = "no",
    use_port: str | int = "29500",
    master_addr: str = "127.0.0.1",
    node_rank: int = 0,
    num_nodes: int = 1,
    rdzv_backend: str = "static",
    rdzv_endpoint: str = "",
    rdzv_conf: Mapping[str, Any] | None = None,
    rdzv_id: str = "none",
    max_restarts: int = 0,
    monitor_interval: float = 0.1,
    log_line_prefix_template: str | None = None,
) -> None:
    """Train with several processes from a notebook, with what the notebook has defined.

    Args:
        function: What each process runs; it should make its own `Accelerator`.
        args: Positional arguments for it.
        num_processes: Processes on this machine: one for each GPU, or 1, if None. On a machine without GPUs they
            run on the CPU.
        mixed_precision: ``no``, ``fp16``, ``bf16`` or ``fp8``.
        use_port: Where the processes meet; 0 for a free one (on one machine).
        master_addr: Address of the machine with ``node_rank`` 0.
        node_rank: Place of this machine among ``num_nodes``.
        num_nodes: Number of machines; this must be called on each.
        rdzv_backend: How several machines meet: ``static``, where ``node_rank`` 0 is, with ranks in the order of
            ``node_rank``, or ``c10d``, ``etcd``, ... of torch's.
        rdzv_endpoint: Where they meet; from ``master_addr`` and ``use_port`` if empty.
        rdzv_conf: Further settings of that, such as ``timeout``: the seconds that machines wait for each other (900).
        rdzv_id: Name of the run, the same on all machines.
        max_restarts: How often the processes are started again after a failure.
        monitor_interval: Seconds between two looks for other machines that start again.
        log_line_prefix_template: What stands before each line that a process writes, with ``${role_name}``,
            ``${local_rank}`` and ``${rank}``.

    Blocks until all processes have ended. torch's elastic agent starts them. A signal that would end or interrupt this
    process ends them first, within 30 seconds, and then does what it does here; a second interrupt kills them at once.
    In a thread other than the main one signals do not reach them; no process outlives the kernel even so. With
    ``ACCELERATE_DEBUG_MODE=yes`` a forked process first tries to use a GPU.

    Raises:
        ConfigError: If a value is wrong.
        NotAvailableError: For several processes on Windows, which cannot fork.
        LaunchError: If a process fails; it says which failed first, and with what. It is a `ChildFailedError` and a
            `ProcessRaisedException` of torch, too.
        KeyboardInterrupt: If it is interrupted.
        StateError: If this process has used a GPU or built an `Accelerator` already, so that it cannot be forked.
    """
    _check(mixed_precision, num_processes=num_processes, node_rank=node_rank, num_nodes=num_nodes)
    port = _port(use_port)
    if port == 0 and num_nodes > 1 and not rdzv_endpoint:
        raise ConfigError(
            "`use_port` is 0, a free one, but several machines must agree on it. Give a number."
        )
    if snapshot().keys() & {"PJRT_DEVICE", "TPU_NAME"}:
        run_on_tpu(function, args, num_processes=num_processes, mixed_precision=mixed_precision)
        return
    gpus = find_accelerators(snapshot()).names
    number = _number(num_processes, gpus)
    settings = {"ACCELERATE_MIXED_PRECISION": mixed_precision}
    if number == num_nodes == 1:
        with patch_environment(**settings):
            function(*args)
        return
    require_fork("`notebook_launcher` with several processes")
    check_no_accelerator("notebook_launcher")
    if gpus:
        check_gpus_survive_a_fork()
    else:
        settings["ACCELERATE_USE_CPU"] = "yes"
    endpoint = _meeting_place(rdzv_endpoint, f"{master_addr}:{port}" if port else "", rdzv_backend)
    if port and node_rank == 0:
        with held_port(port, asked_with="use_port"):  # only to refuse a port that is taken
            pass
    run_forks(
        function,
        args,
        settings,
        number,
        endpoint=endpoint,
        backend=rdzv_backend,
        conf=rdzv_conf,
        run_id=rdzv_id,
        machine_rank=node_rank,
        num_machines=num_nodes,
        max_restarts=max_restarts,
        monitor_interval=monitor_interval,
        prefix_template=log_line_prefix_template,
    )


def debug_launcher(function: Callable[..., Any], args: Sequence[Any] = (), num_processes: int = 2) -> None:
    """Run a function in some processes on the CPU, to try out what it does in several.

    Args:
        function: What each process runs.
        args: Positional arguments for it.
        num_processes: How many.

    Blocks until all have ended, as `notebook_launcher` does.

    Raises:
        ConfigError: If ``num_processes`` is less than 1.
        NotAvailableError: On Windows, which cannot fork.
        LaunchError: If a process fails, as for `notebook_launcher`.
        StateError: If this process has built an `Accelerator` already.
    """
    require_fork("`debug_launcher`")
    _check_number(num_processes)
    check_no_accelerator("debug_launcher")
    run_forks(function, args, {"ACCELERATE_USE_CPU": "yes"}, num_processes)


def _number(asked: int | None, gpus: Sequence[str]) -> int:
    number = asked if asked is not None else len(gpus) or 1
    if gpus and number > len(gpus):
        raise ConfigError(
            f"`num_processes` is {number}, but this machine has {len(gpus)} GPUs. Ask for at most as many."
        )
    return number


def _meeting_place(endpoint: str, otherwise: str, backend: str) -> str:
    if endpoint and backend == "static":
        _port(endpoint.rpartition(":")[2], what="The port of `rdzv_endpoint`")
    return endpoint or otherwise


def _check(mixed_precision: str, *, num_processes: int | None, node_rank: int, num_nodes: int) -> None:
    find_setting("mixed_precision").value_of(mixed_precision, source="mixed_precision")
    if num_nodes < 1 or not 0 <= node_rank < num_nodes:
        raise ConfigError(f"`node_rank` is {node_rank}, but it must lie below `num_nodes`, {num_nodes}.")
    if num_processes is not None:
        _check_number(num_processes)


def _check_number(num_processes: int) -> None:
    if num_processes < 1:
        raise ConfigError(f"`num_processes` must be at least 1, got {num_processes}.")


def _port(asked: str | int, *, what: str = "`use_port`") -> int:
    port = int(asked) if str(asked).isdecimal() else -1
    if not 0 <= port <= 65535:
        raise ConfigError(f"{what} is `{asked}`, but it must be a number up to 65535, or 0 for a free port.")
    return port
