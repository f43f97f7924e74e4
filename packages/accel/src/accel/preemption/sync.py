"""The preemption sync point: once any rank is asked to stop, all ranks agree on the step to stop after."""

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
"""How often a rank checks for another rank's request to stop; its own request wakes it at once."""

AGREEMENT_TIMEOUT_S = 60.0
"""How long to wait for the answers of the other ranks; their watcher threads send them at once."""

LEAVE_TIMEOUT_S = 5.0
"""How long rank 0 waits for the other ranks to stop using the store, which may end with rank 0."""


class PreemptionSync:
    """Agrees on the same last step on every rank, at almost no cost until a rank is asked to stop.

    A watcher thread waits for a request on this rank, and polls the store every half second for requests on other
    ranks. When there is one, the thread reports the number of this rank's next step, and the rank does not continue
    past that step until all ranks have reported. The largest reported number is the last step.

    Ranks may be several steps apart. No rank waits for another's training, only once for the reports of the watcher
    threads. Until a request, a step costs one addition and the check of one flag.

    Args:
        store: The store that the ranks share; None in a single process.
        rank: This process.
        world_size: Number of ranks.
        grace_period_s: Time from the request until the process is killed; None means never.
        exit_code: Exit code of a process that is killed after the grace period.
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
        # Signal handlers call `put`. It is reentrant, unlike the methods of an event.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._cancelled = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="accel-preemption", daemon=True)
        self._thread.start()

    @property
    def is_possible(self) -> bool:
        """Whether the ranks can still agree."""
        return self._failure is None

    def ask(self) -> None:
        """Ask all ranks to stop; safe in a signal handler."""
        if self.asked_at is None:
            self.asked_at = time.monotonic()
        if self._store is None:
            self._is_pending = True
        self._wake.put(None)

    def advance(self) -> None:
        """Count one step, and decide whether it is the last. Every rank must call it equally often.

        Raises:
            StateError: If the agreement failed because another rank did not answer.
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
        """Stop polling the store, after completing an agreement that has started."""
        self._is_closing = True
        self._wake.put(None)
        self._settled.wait(timeout=AGREEMENT_TIMEOUT_S)

    def close(self) -> None:
        """Stop polling, and cancel the grace period."""
        self._cancelled.set()
        self.settle()

    def _watch(self) -> None:
        try:
            is_asked = self._wait_for_request()
            if self._store is not None:
                (self._agree_on_last_step if is_asked else self._leave)(self._store)
        except RuntimeError as error:  # torch's, from the store
            if not self._answered.is_set():
                self._failure = f"The ranks could not agree when to stop: {error}"
        finally:
            self._answered.set()
            self._settled.set()
        if self._is_pending and self._grace_period_s is not None:
            self._enforce(self._grace_period_s)

    def _wait_for_request(self) -> bool:
        """Return True once any rank is asked to stop, False if this rank closes or rank 0 ends its training first."""
        while True:
            if self.asked_at is not None and self._store is not None:
                self._store.set("asked", "")
            if self.asked_at is not None or (self._store is not None and self._store.check(["asked"])):
                self.asked_at = self.asked_at or time.monotonic()
                return True
            if self._is_closing or self._has_rank_0_left():
                return False
            with suppress(queue.Empty):
                self._wake.get(timeout=None if self._store is None else POLL_S)

    def _has_rank_0_left(self) -> bool:
        """Whether rank 0 has ended its training, so that no agreement is possible any more."""
        if self._store is None or self._rank == 0 or not self._store.check(["rank_0_left"]):
            return False
        self._failure = "The ranks could not agree when to stop: rank 0 has ended its training."
        return True

    def _leave(self, store: Store) -> None:
        """Report that this rank no longer uses the store; rank 0 waits until no rank does.

        Otherwise torch would print a long traceback on a rank that calls a store that has ended.
        """
        if self._rank != 0:
            store.add("num_left", 1)
            return
        store.set("rank_0_left", "")
        deadline = time.monotonic() + LEAVE_TIMEOUT_S
        while store.add("num_left", 0) < self._world_size - 1 and time.monotonic() < deadline:
            time.sleep(0.005)

    def _agree_on_last_step(self, store: Store) -> None:
        # Set the flag before reading the step: the main thread then either waits at its next step, or has already
        # counted that step.
        self._is_pending = True
        agreement = StoreAgreement(
            store,
            rank=self._rank,
            world_size=self._world_size,
            deadline_s=AGREEMENT_TIMEOUT_S,
            presence=_RankZeroPresence(store),
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
            f"killed with exit code {self._exit_code}.\n"
        )
        sys.stderr.flush()
        os._exit(self._exit_code)


class _RankZeroPresence:
    """Reports rank 0 as ended once its training has ended; watches no other rank."""

    num_bytes = 0

    def __init__(self, store: Store) -> None:
        self._store = store

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that will never answer."""
        return [0] if 0 in ranks and self._store.check(["rank_0_left"]) else []


def _largest(steps: Sequence[str]) -> str:
    return str(max(map(int, steps)))
