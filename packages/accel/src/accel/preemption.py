"""Preemption: stop all ranks after the same step when the scheduler is about to take the machine away."""

from __future__ import annotations

import atexit
import itertools
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.utils.data import DataLoader

import accel_data
from accel_state import current_runtime
from accel_state.errors import ConfigError, StateError

SIGNALS: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)
"""The signals that schedulers send before they preempt a job."""

REQUEUE = 75
"""`EX_TEMPFAIL` in sysexits.h: a temporary failure; try again."""

POLL_S = 0.5
"""Seconds between checks for other ranks' requests to stop; a request on this rank is handled at once."""

AGREEMENT_TIMEOUT_S = 60.0
"""How long to wait for the answers of the other ranks; their watcher threads send them at once."""

LEAVE_TIMEOUT_S = 5.0
"""How long rank 0 waits for the other ranks to stop using the store, which may end with rank 0."""

_numbers = itertools.count()


class Preemption:
    """Handles signals, and stops all ranks after the same step once any rank has received one.

    Created by `Accelerator.handle_preemption`. Handlers that were installed before are called too (except Python's own
    for Ctrl-C), and `close` restores them.

    Args:
        signals: Signals that request a stop.
        grace_period_s: Time from the signal until the process is killed with ``exit_code``; None means never.
        exit_code: The exit code that `leave` uses.
        end: Called by `leave` before the process exits.

    Raises:
        ConfigError: If a signal cannot be handled, the grace period is not positive, the exit code is out of range,
            or the ranks share no store.
        StateError: Outside the main thread, because Python handles signals only there.
    """

    def __init__(
        self,
        *,
        signals: Sequence[int],
        grace_period_s: float | None,
        exit_code: int,
        end: Callable[[], None],
    ) -> None:
        check(signals, grace_period_s=grace_period_s, exit_code=exit_code)
        topology = current_runtime().topology
        self.exit_code = exit_code
        self._end = end
        self._process = os.getpid()
        self._is_leaving = False
        self.is_open = True
        self._sync = PreemptionSync(
            shared_store(next(_numbers)) if topology.world_size > 1 else None,
            rank=topology.rank,
            world_size=topology.world_size,
            grace_period_s=grace_period_s,
            exit_code=exit_code,
        )
        self.advance = self._sync.advance
        """Count a step in a loop without `backward`. Every rank must call it equally often."""
        self._signals = list(signals)
        self._before: dict[int, Any] = {}
        for signum in signals:
            self._before[signum] = signal.signal(signum, self._on_signal)
        atexit.register(self.close)

    @property
    def should_stop(self) -> bool:
        """Whether all ranks have agreed to stop after the step that `advance` counted last."""
        return self._sync.is_agreed

    def keep_workers(self, loader: DataLoader[Any]) -> None:
        """Keep workers that `loader` starts before `close` alive when a signal arrives, and what resumption needs."""
        accel_data.keep_workers(loader, self._signals)
        if isinstance(loader, accel_data.PreparedLoader):  # libraries add others to the Accelerator's list
            loader.keep_dataset_state()

    def __enter__(self) -> Preemption:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self.should_stop:
            self.leave()
        self.close()

    def leave(self) -> NoReturn:
        """End the training, and exit the process with the exit code. Every rank must call it.

        From here on signals are ignored, since launchers send them as soon as the first rank has exited.

        Raises:
            SystemExit: Always, with the exit code.
        """
        self._is_leaving = True
        atexit.unregister(self.close)
        self._sync.settle()
        self._before.clear()
        self._end()
        raise SystemExit(self.exit_code)

    def close(self) -> None:
        """Restore the previous signal handlers."""
        if not self.is_open or self._is_leaving or os.getpid() != self._process:
            return
        self.is_open = False
        self._signals.clear()
        for signum, handler in self._before.items():
            if signal.getsignal(signum) == self._on_signal:
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)  # None: not from Python
        self._sync.close()
        atexit.unregister(self.close)

    def _on_signal(self, signum: int, frame: FrameType | None) -> None:
        before = self._before.get(signum)
        # A forked child, such as a loader's worker, takes no part in the agreement; nor does the last remaining rank.
        if os.getpid() != self._process or not (self._sync.is_possible or self._is_leaving):
            signal.signal(signum, signal.SIG_DFL if before is None else before)
            os.kill(os.getpid(), signum)
            return
        self._sync.ask()
        if callable(before) and before is not signal.default_int_handler:  # which raises KeyboardInterrupt
            before(signum, frame)


def check(signals: Sequence[int], *, grace_period_s: float | None, exit_code: int) -> None:
    """Validate the arguments before any handler is installed.

    Raises:
        StateError: Outside the main thread.
        ConfigError: If an argument is invalid.
    """
    if threading.current_thread() is not threading.main_thread():
        raise StateError("Signals can be handled in the main thread only. Call `handle_preemption` there.")
    if not signals:
        raise ConfigError("`signals` is empty. Give at least one, such as `signal.SIGTERM`.")
    for signum in signals:
        if signum not in signal.valid_signals() or signum in (signal.SIGKILL, signal.SIGSTOP):
            raise ConfigError(f"`signals` has {signum!r}, which no process can handle. Leave it out.")
    if grace_period_s is not None and not grace_period_s > 0:
        raise ConfigError(f"`grace_period_s` must be positive or None (no limit), got {grace_period_s}.")
    if not 0 <= exit_code <= 255:
        raise ConfigError(f"`exit_code` must be between 0 and 255, got {exit_code}.")


def shared_store(number: int) -> Store:
    """Return the store of the process group, with a separate prefix and connection.

    Args:
        number: Makes the prefix unique; the same on every rank.

    Raises:
        ConfigError: If there is no process group.
    """
    if not (dist.is_available() and dist.is_initialized()):
        raise ConfigError(
            "`handle_preemption` needs a process group, through which the ranks agree when to stop, and this run has "
            "none. Use a strategy that sets one up."
        )
    # torch has no public access to the store of a process group.
    store = dist.distributed_c10d._get_default_store()
    return PrefixStore(f"accel/preemption/{number}", store.clone())  # type: ignore[attr-defined]  # missing in torch's stub


class PreemptionSync:
    """Agrees on the same last step on every rank, at almost no cost until a stop is requested.

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
        """Request a stop on all ranks; safe in a signal handler."""
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
        if not self._is_pending or self.is_agreed:
            return
        if self._store is not None:
            self._settled.wait()
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
                self._agree(self._store, is_asked=is_asked)
                self._leave(self._store)
        except RuntimeError as error:  # torch's, from the store
            self._failure = f"The ranks could not agree when to stop: {error}"
        finally:
            self._settled.set()
        if self._is_pending and self._grace_period_s is not None:
            self._enforce(self._grace_period_s)

    def _wait_for_request(self) -> bool:
        """Return True when any rank requests a stop, False if this rank closes or rank 0 ends its training first."""
        store = self._store
        while True:
            if self.asked_at is not None and store is not None:
                store.set("asked", "")
            if self.asked_at is not None or (store is not None and store.check(["asked"])):
                self.asked_at = self.asked_at or time.monotonic()
                return True
            if self._is_closing:
                return False
            if store is not None and self._rank != 0 and store.check(["rank_0_left"]):
                self._failure = "The ranks could not agree when to stop: rank 0 has ended its training."
                return False
            with suppress(queue.Empty):
                self._wake.get(timeout=None if store is None else POLL_S)

    def _agree(self, store: Store, *, is_asked: bool) -> None:
        """Report this rank's next step, also if it ends its training; after a request to stop, wait for all reports."""
        # Set the flag before reading the step: the main thread then either waits at its next step, or has already
        # counted that step.
        self._is_pending = is_asked
        steps = [f"step/{rank}" for rank in range(self._world_size)]
        store.set(steps[self._rank], str(self._step + 1))
        if not is_asked:
            return
        try:
            store.wait(steps, timedelta(seconds=AGREEMENT_TIMEOUT_S))
        except dist.DistStoreError:
            missing = [str(rank) for rank, key in enumerate(steps) if not store.check([key])]
            if missing:
                self._failure = (
                    f"The ranks could not agree when to stop: rank {', '.join(missing)} has not answered within "
                    f"{AGREEMENT_TIMEOUT_S:g} s. It may have failed; see its output."
                )
                return
        self._last_step = max(map(int, store.multi_get(steps)))

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

    def _enforce(self, grace_period_s: float) -> None:
        assert self.asked_at is not None
        if self._cancelled.wait(max(0.0, self.asked_at + grace_period_s - time.monotonic())):
            return
        sys.stderr.write(
            f"accel: rank {self._rank} has not left within the grace period of {grace_period_s:g} s and is "
            f"killed with exit code {self._exit_code}.\n"
        )
        sys.stderr.flush()
        # Not `sys.exit`, which ends this thread only; the main thread may be in a collective that never ends.
        os._exit(self._exit_code)
