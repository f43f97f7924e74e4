"""A world: processes that stay alive over many tests, joined by gloo, each running the calls it is sent."""

from __future__ import annotations

import inspect
import os
import pickle
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from accel_state.environment import snapshot
from accel_state.errors import AccelError
from tools.harness.fork_server import fork_server
from tools.harness.scripts import Script

GRACE_S = 3.0
"""How long the other ranks may continue after one has failed; often they wait for it in a collective."""
_START_S = 120.0
_ROOT = Path(__file__).resolve().parents[2]
_ON_ONE_GPU = {
    "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0",
    "NCCL_MIN_NCHANNELS": "1", "NCCL_MAX_NCHANNELS": "1", "NCCL_RAS_ENABLE": "0",
}  # fmt: skip
"""NCCL takes several ranks on one GPU if each claims to be on a separate host; they communicate over sockets then."""
_KEYS_OF_BODIES = re.compile(b"accel_[a-z]+/|accel/preemption/")
"""What a body leaves in the store of a group, if it saves, stops or runs in debug mode, for one: counts of calls, of
which ranks may have made different numbers, and flags. The next body would wait for ranks that count otherwise."""
_MAIN = "from tools.harness.worker import main; main()"
_PRELOADED = ("pytest", "tools.harness.worker")
"""The imports of every rank besides torch."""


class WorldError(AccelError, RuntimeError):
    """A rank died, hung, or raised what cannot be raised again here."""


class Call(NamedTuple):
    """A function, its arguments and named arguments, pickled, which can be loaded once its file is imported."""

    module: str
    file: str
    what: bytes


class Outcome(NamedTuple):
    """The result of a body on one rank, pickled; or its error, as text and, if it can be pickled, as an object."""

    result: bytes = b""
    error: bytes | None = None
    trace: str | None = None
    has_intact_group: bool = False


class _Rank(Script):
    """One worker process and the connection to it."""

    def __init__(self, number: int, world_size: int, device_type: str, preload: tuple[str, ...]) -> None:
        self.number = number
        self._stdout = tempfile.TemporaryFile()  # noqa: SIM115 -- lives as long as the rank
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        self.line, their_line = Pipe()
        rank, size = str(number), str(world_size)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        environ = {**snapshot(), **place}
        argv = ["-c", _MAIN, device_type, rank, size]
        theirs, ours = os.pipe()
        self.lifeline = os.fdopen(ours, "wb", buffering=0)  # the worker ends when it closes, however we end
        with their_line, os.fdopen(theirs, "rb") as stdin:
            if device_type == "cpu":
                streams = (stdin, self._stdout, self._stderr, their_line)
                server = fork_server(_PRELOADED + preload)
                self.process = server.start(argv, environ=environ, streams=streams)
            else:  # a fork of a process that has initialized CUDA cannot use it
                self.process = subprocess.Popen(
                    [sys.executable, *argv, str(their_line.fileno())],
                    env={**environ, **_ON_ONE_GPU, "NCCL_HOSTID": f"rank{number}"},
                    cwd=_ROOT,
                    stdin=stdin,
                    stdout=self._stdout,
                    stderr=self._stderr,
                    pass_fds=[their_line.fileno()],
                    start_new_session=True,
                )

    def ask_for_stacks(self) -> None:
        """Make it write where it is in accel, with plain values, and its threads' stacks."""
        with suppress(OSError):  # it has ended
            self.lifeline.write(b"?")
        super().ask_for_stacks()

    def end(self, *, timeout_s: float) -> None:
        """Wait for the worker, which ends when its connection is closed; kill it if that takes too long."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=timeout_s)
        self.close()
        self.lifeline.close()


class World:
    """``size`` processes, started at the first `run` and again after a failure.

    Each body finds a `PartialState` (CPU and gloo, or all on one GPU over NCCL) and fixed seeds; nothing of an earlier
    body remains. Tensors in results are on the CPU. The modules ``preload`` are imported once for all ranks.
    """

    def __init__(self, size: int, device_type: str = "cpu", *, preload: tuple[str, ...] = ()) -> None:
        self.size = size
        self.device_type = device_type
        self._preload = preload
        self._ranks: list[_Rank] = []
        self._has_group = False
        self._num_groups = 0
        self._store = ""
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
        call = Call(body.__module__, inspect.getfile(body), pickle.dumps((body, args, kwargs)))
        try:
            self._start()
            rendezvous = None
            if not self._has_group:
                assert self._meeting_place is not None
                self._num_groups += 1
                rendezvous = self._store = f"{self._meeting_place.name}/group-{self._num_groups}"
            for rank in self._ranks:
                rank.line.send((call, rendezvous))
            outcomes = self._collect(timeout_s)
        except BaseException:  # Ctrl-C and the end of a test's time, too: a rank may hang
            self._end(timeout_s=0)
            raise
        is_intact = all(outcome.has_intact_group for outcome in outcomes.values())
        if (store := Path(self._store)).exists():  # a rank alone needs none
            is_intact = is_intact and not _KEYS_OF_BODIES.search(store.read_bytes())
        self._has_group = True
        if not is_intact:  # only now that all have answered: leaving breaks the collectives of others
            self.leave_group()
        self._raise_first_error(outcomes)
        return [pickle.loads(outcomes[number].result) for number in range(self.size)]

    def leave_group(self) -> None:
        """Have the ranks leave their groups, whose threads wake up a hundred times a second; `run` makes new ones."""
        for rank in self._ranks if self._has_group else ():
            with suppress(BrokenPipeError):  # one that has died since is replaced by the next `run`
                rank.line.send(None)
        self._has_group = False

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
        self._ranks = [
            _Rank(number, self.size, self.device_type, self._preload) for number in range(self.size)
        ]
        for rank in self._ranks:
            if not rank.line.poll(_START_S):
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

    def _collect(self, timeout_s: float) -> dict[int, Outcome]:
        """Return each rank's outcome, in the order of arrival; kill all if one is late, or long after an error."""
        outcomes: dict[int, Outcome] = {}
        deadline = time.monotonic() + timeout_s
        while late := [rank for rank in self._ranks if rank.number not in outcomes]:
            ready = wait([rank.line for rank in late], max(0.0, deadline - time.monotonic()))
            for rank in [each for each in late if each.line in ready]:
                outcomes[rank.number] = self._receive(rank)
                if outcomes[rank.number].trace is not None:
                    deadline = min(deadline, time.monotonic() + GRACE_S)
            if not ready:
                if any(outcome.trace for outcome in outcomes.values()):  # the one to show first
                    outcomes |= {rank.number: Outcome(trace=rank.describe()) for rank in late}
                    self._end(timeout_s=0)
                    break
                names = ", ".join(str(rank.number) for rank in late)
                told = "\n".join(f"--- rank {each.number} {each.describe()}" for each in self._ranks)
                raise WorldError(
                    f"Rank(s) {names} of {self.size} did not answer within {timeout_s:g} s.\n{told}"
                )
        return outcomes

    def _receive(self, rank: _Rank) -> Outcome:
        try:
            outcome: Outcome = rank.line.recv()
        except (EOFError, ConnectionResetError):
            rank.process.wait(timeout=10)
            raise WorldError(f"Rank {rank.number} of {self.size} {rank.describe()}") from None
        return outcome

    def _raise_first_error(self, outcomes: dict[int, Outcome]) -> None:
        failed = {number: outcome for number, outcome in outcomes.items() if outcome.trace is not None}
        if not failed:
            return
        number, outcome = next(iter(failed.items()))
        notes = "\n".join(f"--- rank {each} of {self.size}:\n{failed[each].trace}" for each in sorted(failed))
        if outcome.error is None:
            raise WorldError(f"Rank {number} of {self.size} raised an error.\n{notes}")
        error: BaseException = pickle.loads(outcome.error)
        error.add_note(notes)
        raise error
