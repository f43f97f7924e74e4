"""A world: processes that stay alive over many tests, joined by gloo, each running the calls it is sent."""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import IO, Any

from accel_state.environment import snapshot
from accel_state.errors import AccelError
from tools.harness.fork_server import ForkedProcess, fork_server
from tools.harness.remote_calls import Call, Outcome
from tools.harness.scripts import kill_tree, open_files

GRACE_S = 3.0
"""How long the other ranks may continue after one has failed; often they wait for it in a collective."""
_START_S = 120.0
_STACK_S = 5.0
_STDERR_BYTES = 8000
_WORDS_BYTES = 1000
_SLEEPS = re.compile(r"Thread .*\n.*threading\.py.* in wait\n")
"""Matches the stack of a thread that waits for its next turn, but never that of the main thread, the current one."""
_ROOT = Path(__file__).resolve().parents[2]
_ON_ONE_GPU = {
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0",
    "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1", "NCCL_RAS_ENABLE": "0",
}  # fmt: skip
"""NCCL takes several ranks on one GPU if each claims to be on a separate host; they communicate over sockets then."""
_MAIN = "from tools.harness.worker import main; main()"


class WorldError(AccelError, RuntimeError):
    """A rank died, hung, or raised what cannot be raised again here."""


@dataclass(slots=True)
class _Rank:
    """One worker process, the connection to it and the file with its output."""

    number: int
    process: ForkedProcess | subprocess.Popen[bytes]
    line: Connection[Any, Any]
    output: IO[bytes]
    lifeline: IO[bytes]
    """The worker ends when this is closed, however this process ends."""

    @classmethod
    def start(cls, number: int, world_size: int, device_type: str) -> _Rank:
        line, their_line = Pipe()
        output = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the rank
        place = {
            "RANK": number,
            "LOCAL_RANK": number,
            "WORLD_SIZE": world_size,
            "LOCAL_WORLD_SIZE": world_size,
        }
        environ = {**snapshot(), **{key: str(value) for key, value in place.items()}, "OMP_NUM_THREADS": "1"}
        argv = (
            "-c",
            _MAIN,
            "--device",
            device_type,
            "--rank",
            str(number),
            "--world-size",
            str(world_size),
            "--line",
        )
        theirs, ours = os.pipe()
        lifeline = os.fdopen(ours, "wb", buffering=0)
        process: ForkedProcess | subprocess.Popen[bytes]
        with their_line, os.fdopen(theirs, "rb") as stdin:
            if device_type == "cpu":
                streams = (stdin, output, output, their_line)
                process = fork_server().start(argv, environ=environ, streams=streams)
            else:  # a fork of a process that has initialized CUDA cannot use it
                environ |= {**_ON_ONE_GPU, "NCCL_HOSTID": f"rank{number}"}
                words = [sys.executable, *argv, str(their_line.fileno())]
                process = subprocess.Popen(
                    words, env=environ, cwd=_ROOT, stdin=stdin, stdout=output, stderr=output,
                    pass_fds=[their_line.fileno()], start_new_session=True,
                )  # fmt: skip
        return cls(number, process, line, output, lifeline)

    def tail(self) -> str:
        """Return the end of what the worker wrote."""
        size = self.output.seek(0, 2)
        self.output.seek(max(0, size - _STDERR_BYTES))
        return self.output.read().decode(errors="replace").strip()

    def describe(self) -> str:
        """Return the open files of the worker, its last output, where it is in accel, and its threads' stacks."""
        files = open_files(self.process.pid)
        before = earlier = self.output.seek(0, 2)
        with suppress(OSError):  # it has ended
            self.lifeline.write(b"?")
        self.process.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = self.output.seek(0, 2)
            if now == earlier > before:  # it has written, and is done
                break
            earlier = now
        self.output.seek(before)
        stacks = self.output.read().decode(errors="replace").strip()
        self.output.seek(max(0, before - _WORDS_BYTES))
        words = self.output.read(min(before, _WORDS_BYTES)).decode(errors="replace").strip()
        return "\n\n".join(
            [files, words, *(stack for stack in stacks.split("\n\n") if not _SLEEPS.match(stack))]
        )

    def end(self, *, timeout_s: float) -> None:
        """Wait for the worker, which ends when its connection is closed; kill it if that takes too long."""
        try:
            self.process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            kill_tree(self.process.pid)
        self.lifeline.close()
        self.process.wait()
        self.output.close()


class World:
    """``size`` processes, started at the first `run` and again after a failure.

    Each body finds a `PartialState` (CPU and gloo, or all on one GPU over NCCL) and fixed seeds; nothing of an earlier
    body remains. Tensors in results are on the CPU.
    """

    def __init__(self, size: int, device_type: str = "cpu") -> None:
        self.size = size
        self.device_type = device_type
        self._ranks: list[_Rank] = []
        self._has_group = False
        self._num_runs = 0
        self._meeting_place: tempfile.TemporaryDirectory[str] | None = None

    def run(self, body: Callable[..., Any], *args: Any, timeout_s: float = 60, **kwargs: Any) -> list[Any]:
        """Run ``body(*args, **kwargs)`` in every rank and return the results in the order of ranks.

        Args:
            body: A top-level function of the test file.
            timeout_s: How long the slowest rank may take; then all are killed.

        Raises:
            WorldError: If a rank died or hung; the message has its last output and its stacks.
            BaseException: What the body raised, from the lowest rank that reported an error first.
        """
        call = Call.of(body, args, kwargs)
        self._start()
        rendezvous = self._rendezvous()
        for rank in self._ranks:
            rank.line.send((call, rendezvous))
        outcomes = self._collect(timeout_s)
        self._has_group = all(outcome.has_intact_group for outcome in outcomes.values())
        if not self._has_group:  # only now that all have answered: leaving breaks the collectives of others
            for rank in self._ranks:
                with suppress(BrokenPipeError):  # one that has died since is replaced by the next `run`
                    rank.line.send(None)
        self._raise_first_error(outcomes)
        return [pickle.loads(outcomes[number].result) for number in range(self.size)]

    @property
    def pids(self) -> list[int]:
        """The process ids of the live ranks."""
        return [rank.process.pid for rank in self._ranks]

    def close(self) -> None:
        """End all ranks; the next `run` starts new ones."""
        self._end(timeout_s=10)

    def _start(self) -> None:
        if self._ranks and all(rank.process.poll() is None for rank in self._ranks):
            return
        self._end(timeout_s=0)
        self._meeting_place = tempfile.TemporaryDirectory(prefix="accel-world-")
        self._ranks = [_Rank.start(number, self.size, self.device_type) for number in range(self.size)]
        for rank in self._ranks:
            if not rank.line.poll(_START_S):
                self._end(timeout_s=0)
                raise WorldError(f"Rank {rank.number} of {self.size} did not start within {_START_S:g} s.")
            self._receive(rank)

    def _end(self, *, timeout_s: float) -> None:
        for rank in self._ranks:
            rank.line.close()
        for rank in self._ranks:
            rank.end(timeout_s=timeout_s)
        self._ranks = []
        self._has_group = False
        if self._meeting_place is not None:
            self._meeting_place.cleanup()
            self._meeting_place = None

    def _rendezvous(self) -> str | None:
        """Return a fresh file for the rendezvous, or None if the ranks still have their process group."""
        if self._has_group:
            return None
        assert self._meeting_place is not None
        self._num_runs += 1
        return str(Path(self._meeting_place.name) / f"group-{self._num_runs}")

    def _collect(self, timeout_s: float) -> dict[int, Outcome]:
        """Return each rank's outcome, in the order of arrival."""
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + timeout_s
        while waiting := {rank.line: rank for rank in self._ranks if rank.number not in outcomes}:
            ready = wait(waiting, timeout=max(0.0, deadline - time.monotonic()))
            for line in ready:
                rank = waiting[line]  # type: ignore[index]
                outcome = self._receive(rank)
                outcomes[rank.number] = outcome
                if outcome.trace is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            if not ready:
                self._give_up(waiting.values(), outcomes, timeout_s)
                break
        return outcomes

    def _receive(self, rank: _Rank) -> Outcome:
        try:
            outcome: Outcome = rank.line.recv()
        except (EOFError, ConnectionResetError):
            code = rank.process.wait(timeout=10)
            message = (
                f"Rank {rank.number} of {self.size} died with exit code {code}. It wrote:\n{rank.tail()}"
            )
            self._end(timeout_s=0)
            raise WorldError(message) from None
        return outcome

    def _give_up(self, late: Iterable[_Rank], outcomes: dict[int, Outcome], timeout_s: float) -> None:
        """Kill all ranks: some did not answer in time, or not within the grace period after another's error."""
        late = list(late)
        all_ranks = "\n".join(f"--- rank {rank.number} {rank.describe()}" for rank in self._ranks)
        self._end(timeout_s=0)
        if not any(outcome.trace for outcome in outcomes.values()):
            names = ", ".join(str(rank.number) for rank in late)
            raise WorldError(
                f"Rank(s) {names} of {self.size} did not answer within {timeout_s:g} s.\n{all_ranks}"
            )

    def _raise_first_error(self, outcomes: dict[int, Outcome]) -> None:
        failed = {number: outcome for number, outcome in outcomes.items() if outcome.trace is not None}
        if not failed:
            return
        number, outcome = next(iter(failed.items()))
        notes = "\n".join(
            f"--- rank {other} of {self.size}:\n{failed[other].trace}" for other in sorted(failed)
        )
        if outcome.error is None:
            raise WorldError(f"Rank {number} of {self.size} raised an error.\n{notes}")
        error: BaseException = pickle.loads(outcome.error)
        error.add_note(notes)
        raise error
