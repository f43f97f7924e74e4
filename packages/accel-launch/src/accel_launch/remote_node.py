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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from accel_launch.foreign_tables import Types, has_entries, read_table
from accel_launch.machine import find_accelerators, num_cpu_cores, threads_of
from accel_launch.plan import LogSettings, ProcessPlan
from accel_launch.processes.attempt import Restarts
from accel_launch.processes.child import ChildEnding, exit_code_for_shell
from accel_launch.processes.output import MESSAGE_MARK, log_folder
from accel_launch.processes.signals import RemoteSignals
from accel_launch.processes.supervision import run_processes
from accel_launch.processes.supervisor import RunEnding
from accel_launch.report import RankEnding
from accel_state.environment import snapshot

# What the message may say of all ranks together: the launcher forgets the beginning of a line of 256 KiB.
_NUM_BYTES = 2**17
_NUM_CHARACTERS = 2000
_MESSAGE: Types = {"interrupted_by": (int, type(None)), "num_memory_kills": int, "ranks": list}
_ENDING: Types = {"rank": int, "return_code": int, "was_ended": bool, "last_lines": list}


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
    with log_folder(_log_settings(plan)) as logs:
        ending = run_processes(
            processes,
            host_environ=threads | snapshot(),
            grace_period_s=plan["grace_period_s"],
            prefixes=[plan.get("prefix", "")] * len(processes),
            remote_signals=RemoteSignals.of_standard_input(),
            restarts=Restarts(logs=logs, shown_ranks=plan.get("shown_ranks"), attempt=plan.get("attempt", 0)),
        )
    os.write(2, encoded(_rank_endings(processes, ending), ending.interrupted_by, ending.num_memory_kills))
    failed = sorted(
        (child for child in ending.children if child.return_code != 0),
        key=lambda child: child.failed_at or 0.0,
    )
    return exit_code_for_shell(failed[0].return_code) if failed else 0


def _log_settings(plan: Mapping[str, Any]) -> LogSettings | None:
    logs = plan.get("logs")
    folder = None if logs is None or logs["folder"] is None else Path(logs["folder"])
    return None if logs is None else LogSettings(logs["tee"], folder, plan["role"])


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


def _rank_endings(processes: Sequence[ProcessPlan], ending: RunEnding) -> Iterator[dict[str, Any]]:
    """Yield how each rank ended, as data; moments are given as seconds ago, since clocks differ."""
    now = time.monotonic()
    for process, child in zip(processes, ending.children, strict=True):
        yield {
            "rank": process.rank,
            "return_code": child.return_code,
            "failed_ago_s": None if child.failed_at is None else now - child.failed_at,
            "was_ended": child.was_ended,
            "last_lines": last_lines_within(child.last_lines, _NUM_BYTES // len(processes)),
        }


def encoded(
    ranks: Iterable[dict[str, Any]], interrupted_by: int | None = None, num_memory_kills: int = 0
) -> bytes:
    """Return the message of how ranks ended, which `message_in` reads, as the last lines of a standard error."""
    message = {
        "hostname": socket.gethostname(),
        "interrupted_by": interrupted_by,
        "num_memory_kills": num_memory_kills,
        "ranks": list(ranks),
    }
    return MESSAGE_MARK + b"\n" + MESSAGE_MARK + json.dumps(message).encode() + b"\n"


def message_in(lines: Sequence[str]) -> dict[str, Any] | None:
    """Return the last message of `encoded` in the lines that a host has written; None without a sound one."""
    mark = MESSAGE_MARK.decode()
    found = [line for line in lines if line.startswith(mark)]
    message = read_table(found[-1].removeprefix(mark), _MESSAGE) if found else None
    is_sound = message is not None and all(has_entries(rank, _ENDING) for rank in message["ranks"])
    return message if is_sound else None


def endings_in(message: Mapping[str, Any], host: str) -> list[RankEnding]:
    """Return the endings of the ranks in a message of `encoded`; of a rank with a ``host`` of its own, there."""
    now = time.monotonic()
    return [
        RankEnding(
            rank["rank"],
            rank.get("host", host),
            ChildEnding(
                rank["return_code"],
                now - ago if isinstance(ago := rank.get("failed_ago_s"), float) else None,
                rank["was_ended"] or message["interrupted_by"] is not None,
                tuple(map(str, rank["last_lines"])),
            ),
        )
        for rank in message["ranks"]
    ]


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
