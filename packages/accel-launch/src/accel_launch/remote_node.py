"""The program that runs the ranks of one machine for a launcher on another.

It is started as ``python -P -m accel_launch.remote_node``. The first line of its standard input is the plan, as JSON;
each further line is the number of a signal for the ranks. The end of the input means that the launcher is gone: the
ranks are killed. The last line it writes to stderr is a message for the launcher: how each rank ended.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_launch.accelerators.detection import find_accelerators
from accel_launch.cpu_cores import num_cpu_cores, threads_of
from accel_launch.plan import ProcessPlan
from accel_launch.processes.ending import exit_code_for_shell
from accel_launch.processes.output import MESSAGE_MARK
from accel_launch.processes.signals import RemoteSignals
from accel_launch.processes.supervision import run_processes
from accel_launch.processes.supervisor import RunEnding
from accel_state.environment import snapshot

# What the message may say of all ranks together: the launcher forgets the beginning of a line of 256 KiB.
_NUM_BYTES = 2**17
_NUM_CHARACTERS = 2000


def main() -> int:
    """Run one plan; return the exit code of the rank that failed first by the clock."""
    # Unbuffered, so that the signals after the first line are not taken with it.
    with open(sys.stdin.fileno(), "rb", buffering=0, closefd=False) as orders:
        plan = json.loads(orders.readline())
    processes = [process_from(data) for data in plan["processes"]]
    # Without the key, the environment of the ranks says how many threads each has.
    threads = (
        {"OMP_NUM_THREADS": _threads(len(processes), use_cpu=plan["use_cpu"])} if "use_cpu" in plan else {}
    )
    ending = run_processes(
        processes,
        host_environ=threads | snapshot(),
        grace_period_s=plan["grace_period_s"],
        remote_signals=RemoteSignals.of_standard_input(),
    )
    message = json.dumps(describe(processes, ending)).encode()
    os.write(2, MESSAGE_MARK + b"\n" + MESSAGE_MARK + message + b"\n")
    failed = sorted(
        (child for child in ending.children if child.return_code != 0),
        key=lambda child: child.failed_at or 0.0,
    )
    return exit_code_for_shell(failed[0].return_code) if failed else 0


def _threads(num_ranks: int, *, use_cpu: bool) -> str:
    """Return the threads of each rank where nobody has set them, by the cores and accelerators of this machine."""
    is_on_cpu = use_cpu or not find_accelerators(snapshot()).names
    return str(threads_of(num_cpu_cores(), num_ranks=num_ranks, is_on_cpu=is_on_cpu))


def process_from(data: Mapping[str, Any]) -> ProcessPlan:
    """Return the process that `ProcessPlan.to_dict` told."""
    return ProcessPlan(
        tuple(data["argv"]),
        Path(data["cwd"]),
        data["environ"],
        tuple(data["unset"]),
        data["host"],
        data["rank"],
    )


def describe(processes: list[ProcessPlan], ending: RunEnding) -> dict[str, Any]:
    """Return how the ranks ended, as data; moments are told as seconds ago, since clocks differ."""
    now = time.monotonic()
    return {
        "hostname": socket.gethostname(),
        "interrupted_by": ending.interrupted_by,
        "num_memory_kills": ending.num_memory_kills,
        "ranks": [
            {
                "rank": process.rank,
                "return_code": child.return_code,
                "failed_ago_s": None if child.failed_at is None else now - child.failed_at,
                "was_ended": child.was_ended,
                "last_lines": last_lines_within(child.last_lines, _NUM_BYTES // len(processes)),
            }
            for process, child in zip(processes, ending.children, strict=True)
        ],
    }


def last_lines_within(lines: Sequence[str], num_bytes: int) -> list[str]:
    """Return as many of the last lines as come to ``num_bytes`` of JSON; of long ones, the beginning."""
    kept: list[str] = []
    for line in reversed(lines):
        end = line[:_NUM_CHARACTERS]
        num_bytes -= len(json.dumps(end)) + 2
        if num_bytes < 0:
            break
        kept.insert(0, end)
    return kept


if __name__ == "__main__":
    sys.exit(main())
