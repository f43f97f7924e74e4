"""All ranks agree on the step after which they stop, once one of them has been asked to."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress

from torch._C._distributed_c10d import Store

from accel_checkpoint.ranks.agreement import StoreAgreement
from accel_state.errors import CheckpointError, StateError

POLL_S = 0.5
"""How often a rank looks whether another has been asked to stop; its own request wakes it at once."""

ANSWER_S = 60.0
"""How long to wait for the other ranks' answers, which their watching threads give at once."""

FAREWELL_S = 5.0
"""How long rank 0, with which the store may go, waits at most until the others ask it no more."""


class PreemptionSync:
    """The same last step on every rank, at no cost until somebody asks for it.

    A thread waits for a request, and looks every half second whether another rank has one. If so, it
    promises, in the group's store, that its rank will not pass the step after the present one before it knows
    all promises. The step to stop after is the largest. So ranks may be steps apart, and none waits for
    another's training: only for the threads' answers, once. Until then a step costs an addition and a look
    at a flag.

    Args:
        store: The store that the ranks share; None in a single process.
        rank: This process.
        world_size: Processes that must agree.
        grace_period_s: Time from the request until the process is ended by force; None: never.
        exit_code: Of the process that is ended by force.
    """

    def __init__(
        self,
        store: Store | None,
        *,
        rank: int,
        world_size: int,
        grace_period_s: float | None,
        exit_code: int,
    ) -> None:
        self._store = store
        self._rank = rank
        self._world_size = world_size
        self._grace_period_s = grace_period_s
        self._exit_code = exit_code
        self.asked_at: float | None = None
        self.is_agreed = False
        self._step = 0
        self._last_step = 0
        self._failure: str | None = None
        self._is_pending = False
        self._answered = threading.Event()
        self._settled = threading.Event()
        self._is_closing = False
        # Unlike the methods of an event, `put` may interrupt itself: signal handlers call it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="accel-preemption", daemon=True)
        self._thread.start()

    @property
    def is_possible(self) -> bool:
        """Whether the ranks can still hear of each other."""
        return self._failure is None

    def ask(self) -> None:
        """Ask all ranks to stop; safe in a signal handler."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        if self._store is None:
            self._is_pending = True
        self._wake.put(None)

    def advance(self) -> None:
        """Count one step, and decide whether it is the last. Every rank must call it as often.

        Raises:
            StateError: If another rank did not answer, so that no step can be agreed on.
        """
        self._step += 1
        if self._is_pending and not self.is_agreed:
            self._decide()

    def _decide(self) -> None:
        if self._store is not None:
            self._answered.wait()
        if self._failure is not None:
            raise StateError(self._failure)
        self.is_agreed = self._step >= self._last_step

    def settle(self) -> None:
        """Stop asking the store; where an agreement is under way, see it through first."""
        self._is_closing = True
        self._wake.put(None)
        self._settled.wait(timeout=ANSWER_S)

    def close(self) -> None:
        """Stop altogether: nobody is ended by force any more."""
        self._cancelled.set()
        self.settle()

    def _watch(self) -> None:
        try:
            is_asked = self._wait_for_request()
            if self._store is not None:
                (self._exchange if is_asked else self._part)(self._store)
        except RuntimeError as error:  # torch's, from the store
            if not self._answered.is_set():
                self._failure = f"The ranks could not agree when to stop: {error}"
        finally:
            self._answered.set()
            self._settled.set()
        if self._is_pending and self._grace_period_s is not None:
            self._enforce(self._grace_period_s)

    def _wait_for_request(self) -> bool:
        """Return True when any rank has been asked, False when nobody was before `close` here or on rank 0."""
        while True:
            if self.asked_at is not None and self._store is not None:
                self._store.set("asked", "")
            if self.asked_at is not None or (self._store is not None and self._store.check(["asked"])):
                self.asked_at = self.asked_at or time.monotonic()
                return True
            if self._is_closing or self._is_rank_0_parting():
                return False
            with suppress(queue.Empty):
                self._wake.get(timeout=None if self._store is None else POLL_S)

    def _is_rank_0_parting(self) -> bool:
        """Look whether rank 0 has ended its training; nobody can agree with it any more then."""
        if self._store is None or self._rank == 0 or not self._store.check(["parting"]):
            return False
        self._failure = "The ranks could not agree when to stop: rank 0 has ended its training."
        return True

    def _part(self, store: Store) -> None:
        """Let the others know that this rank asks no more; rank 0 leaves when none does.

        A rank that asked a store which has gone would get a long trace of torch's on its screen.
        """
        if self._rank != 0:
            store.add("parted", 1)
            return
        store.set("parting", "")
        deadline = time.monotonic() + FAREWELL_S
        while store.add("parted", 0) < self._world_size - 1 and time.monotonic() < deadline:
            time.sleep(0.005)

    def _exchange(self, store: Store) -> None:
        # In this order: the main thread either sees the request in its next step and waits, or that step is
        # counted in the promise.
        self._is_pending = True
        agreement = StoreAgreement(
            store,
            rank=self._rank,
            world_size=self._world_size,
            deadline_s=ANSWER_S,
            presence=_Parting(store),
        )
        try:
            self._last_step = int(agreement.agree("stop", str(self._step + 1), _largest))
        except CheckpointError as error:
            self._failure = f"The ranks could not agree when to stop: {error}"

    def _enforce(self, grace_period_s: float) -> None:
        assert self.asked_at is not None
        if self._cancelled.wait(max(0.0, self.asked_at + grace_period_s - time.monotonic())):
            return
        sys.stderr.write(
            f"accel: rank {self._rank} has not left within the grace period of {grace_period_s:g} s and is "
            f"ended, with exit code {self._exit_code}.\n"
        )
        sys.stderr.flush()
        os._exit(self._exit_code)


class _Parting:
    """Knows which ranks can no longer be agreed with: rank 0, once it has ended its training."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that will not answer any more."""
        return [0] if 0 in ranks and self._store.check(["parting"]) else []


def _largest(steps: Sequence[str]) -> str:
    return str(max(map(int, steps)))
