"""Training with several processes from a notebook."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accel_launch.accelerators.detection import find_accelerators
from accel_launch.launchers.ports import held_port
from accel_launch.notebook.elastic import ElasticRank, run_elastically
from accel_launch.notebook.fork_checks import check_gpus_survive_a_fork, check_no_accelerator
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
        rdzv_backend: ``static``, ``c10d``, ... for torch's elastic agent.
        rdzv_endpoint: Where the machines meet; from ``master_addr`` and ``use_port`` if empty.
        rdzv_conf: Further settings of the rendezvous.
        rdzv_id: Name of the run.
        max_restarts: How often the processes are started again after a failure.
        monitor_interval: Seconds between two looks at the processes.
        log_line_prefix_template: What stands before each line that a process writes to a log.

    Blocks until all processes have ended. With ``ACCELERATE_DEBUG_MODE=yes`` it tries first whether a forked
    process can use a GPU at all, and finds the import that has used one.

    Raises:
        ConfigError: If a value is wrong.
        NotAvailableError: For several processes on Windows, which cannot fork.
        LaunchError: If a process fails; it says which failed first, and with what. It is a `ChildFailedError` of
            torch, too.
        StateError: If this process has used a GPU or built an `Accelerator` already, so that it cannot be forked.
    """
    _check(mixed_precision, num_processes=num_processes, node_rank=node_rank, num_nodes=num_nodes)
    port = _port(use_port)
    if "torch_xla" in sys.modules or "PJRT_DEVICE" in snapshot():
        run_on_tpu(function, args, num_processes=num_processes, mixed_precision=mixed_precision)
        return
    gpus = find_accelerators(snapshot()).names
    number = num_processes if num_processes is not None else len(gpus) or 1
    if gpus and number > len(gpus):
        raise ConfigError(f"`num_processes` is {number}, but this machine has {len(gpus)} GPUs.")
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
    if num_nodes == 1 and not rdzv_endpoint:
        with held_port(port or None, asked_with="use_port") as port:
            pass
    run_elastically(
        ElasticRank(function, settings),
        args,
        {
            "min_nodes": num_nodes,
            "max_nodes": num_nodes,
            "nproc_per_node": number,
            "run_id": rdzv_id,
            "rdzv_endpoint": rdzv_endpoint or f"{master_addr}:{port}",
            "rdzv_backend": rdzv_backend,
            "rdzv_configs": dict(rdzv_conf or {}) | ({"rank": node_rank} if rdzv_backend == "static" else {}),
            "max_restarts": max_restarts,
            "monitor_interval": monitor_interval,
            "log_line_prefix_template": log_line_prefix_template,
            "start_method": "fork",
        },
    )


def _check(mixed_precision: str, *, num_processes: int | None, node_rank: int, num_nodes: int) -> None:
    find_setting("mixed_precision").value_of(mixed_precision, source="mixed_precision")
    if num_nodes < 1 or not 0 <= node_rank < num_nodes:
        raise ConfigError(f"`node_rank` is {node_rank}, but it must lie below `num_nodes`, {num_nodes}.")
    if num_processes is not None and num_processes < 1:
        raise ConfigError(
            f"`num_processes` must be at least 1, got {num_processes}. Leave it out for one for each GPU."
        )


def _port(asked: str | int) -> int:
    port = int(asked) if str(asked).isdecimal() else -1
    if not 0 <= port <= 65535:
        raise ConfigError(
            f"`use_port` is `{asked}`, but it must be a number up to 65535, or 0 for a free port."
        )
    return port
