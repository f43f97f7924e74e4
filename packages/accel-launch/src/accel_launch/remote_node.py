"""The program that runs the ranks of one machine for a launcher on another, by an `Order` on its standard input.

It is started as ``python -P -m accel_launch.remote_node``; see `accel_launch.remote_protocol`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from accel_launch.machine import find_accelerators, num_cpu_cores, threads_of
from accel_launch.plan import ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.child import exit_code_for_shell
from accel_launch.processes.output import log_folder
from accel_launch.processes.signals import RemoteSignals
from accel_launch.processes.supervision import run_processes
from accel_launch.remote_protocol import FOLDER_THERE, PYTHON_THERE, Endings, Order
from accel_state.environment import snapshot


def main() -> int:
    """Run one order; return the exit code of the rank that failed first by the clock."""
    # Unbuffered, so that the signals after the first line are not taken with it.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as lines:
        order = Order.decode(lines.readline())
    with log_folder(order.logs) as logs:
        ending = run_processes(
            [_here(process) for process in order.processes],
            host_environ=_threads(order) | snapshot(),
            grace_period_s=order.grace_period_s,
            prefixes=[order.prefix] * len(order.processes),
            remote_signals=RemoteSignals.of_standard_input(),
            restarts=Restarts(logs=logs, shown_ranks=order.shown_ranks, attempt=order.attempt),
        )
    os.write(2, Endings(ending.children, ending.interrupted_by, ending.num_memory_kills).encode())
    failed = sorted(
        (child for child in ending.children if child.return_code != 0),
        key=lambda child: child.failed_at or 0.0,
    )
    return exit_code_for_shell(failed[0].return_code) if failed else 0


def _here(process: ProcessPlan) -> ProcessPlan:
    """Return the process with the Python and the folder of this program where they are left open."""
    python, *words = process.argv
    argv = (sys.executable if python == PYTHON_THERE else python, *words)
    return replace(process, argv=argv, cwd=Path.cwd() if str(process.cwd) == FOLDER_THERE else process.cwd)


def _threads(order: Order) -> dict[str, str]:
    """Return the variable of the threads of each rank, by the cores and accelerators of this machine."""
    if order.use_cpu is None:
        return {}
    is_on_cpu = order.use_cpu or not find_accelerators(snapshot()).names
    threads = threads_of(num_cpu_cores(), num_ranks=len(order.processes), is_on_cpu=is_on_cpu)
    return {"OMP_NUM_THREADS": str(threads)}


if __name__ == "__main__":
    sys.exit(main())
