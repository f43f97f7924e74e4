"""Talking to `accel_launch.rendezvous`, the program that agrees with other machines on the ranks of each attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_launch.plan import ProcessPlan
from accel_launch.processes.parent_death import tied_to_parent

_CHUNK = 4096


def program_of(
    interpreter: Sequence[str],
    *,
    cwd: Path,
    backend: str,
    endpoint: str,
    run_id: str,
    conf: str | None,
    num_machines: int,
    machine_rank: int,
    num_processes: int,
    monitor_interval: float,
    is_verbose: bool,
) -> ProcessPlan:
    """Return the process that runs the program, by the flags of `accel launch` of the same names."""
    return ProcessPlan(
        (
            *interpreter,
            "-P",  # a `torch.py` beside the script is not torch
            "-m",
            "accel_launch.rendezvous",
            f"--backend={backend}",
            f"--endpoint={endpoint}",
            f"--id={run_id}",
            *([] if conf is None else [f"--conf={conf}"]),
            f"--num-machines={num_machines}",
            f"--machine-rank={machine_rank}",
            f"--num-processes={num_processes}",
            f"--monitor-interval={monitor_interval}",
            *(["--verbose"] if is_verbose else []),
        ),
        cwd,
        # The ranks have a store of their own: in one that they share with torch's rendezvous, keys of the attempt
        # before are left, and the next one hangs on them now and then (seen with torch 2.13).
        {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )


class RendezvousClient:
    """The running program. It is in a process group of its own, so that it outlives the ranks of an attempt.

    ``meeting`` is what the machines have agreed on, None until they have. ``is_called`` tells that another machine
    waits for this one to start anew. ``is_running`` is false once the program has ended.
    """

    def __init__(self, plan: ProcessPlan, host_environ: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            tied_to_parent(plan.argv, parent_pid=os.getpid()),
            env=plan.environ_on(host_environ),
            cwd=plan.cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            process_group=0,
        )
        self.pid = self._process.pid
        self._process.returncode = 0  # the supervisor waits for all its children
        self._rest = b""
        self.meeting: dict[str, Any] | None = None
        self.is_called = False
        self.is_running = True

    def fileno(self) -> int:
        """Return the descriptor that answers come from."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def meet(self, restarts: int) -> None:
        """Ask for the next meeting; ``restarts`` is how often the ranks have started again so far."""
        self.meeting, self.is_called = None, False
        self._ask({"meet": restarts})

    def leave(self, *, has_failed: bool) -> None:
        """Let the program take its leave of the others: after a success it waits for theirs."""
        self._ask({"leave": has_failed})

    def kill(self) -> None:
        """End the program at once; other machines find out by themselves."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def take(self) -> None:
        """Take the answers that are there."""
        chunk = os.read(self.fileno(), _CHUNK)
        self.is_running = bool(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            answer = json.loads(line)
            self.is_called |= "called" in answer
            self.meeting = answer.get("meeting", self.meeting)

    def _ask(self, question: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
        except BrokenPipeError:  # it has ended, as its answers will say
            return


def placed(plans: Sequence[ProcessPlan], meeting: Mapping[str, Any]) -> list[ProcessPlan]:
    """Return the processes of this machine with the ranks, and the place to meet, that ``meeting`` gives them."""
    of_all = {
        "WORLD_SIZE": meeting["world_size"],
        "ROLE_WORLD_SIZE": meeting["world_size"],
        "GROUP_RANK": meeting["group_rank"],
        "GROUP_WORLD_SIZE": meeting["group_world_size"],
        "MASTER_ADDR": meeting["address"],
        "MASTER_PORT": meeting["port"],
    }
    found = []
    for rank, plan in enumerate(plans, start=meeting["first_rank"]):
        variables = of_all | {"RANK": rank, "ROLE_RANK": rank}
        plan = plan.with_variables(**{name: str(value) for name, value in variables.items()})
        found.append(replace(plan, rank=rank))
    return found
