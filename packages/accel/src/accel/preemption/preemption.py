"""Signal handlers that stop all ranks at the same step when the scheduler preempts the run."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from torch.utils.data import DataLoader

import accel_data
from accel.preemption.sync import PreemptionSync
from accel_state import current_runtime
from accel_state.errors import ConfigError, StateError

SIGNALS: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGTERM", "SIGUSR1") if hasattr(signal, name)
)
"""The signals that schedulers send before they preempt a job."""

REQUEUE = 75
"""`EX_TEMPFAIL` in sysexits.h: a temporary failure; try again."""

_numbers = itertools.count()


class Preemption:
    """Handles signals, and stops all ranks after the same step once any rank has received one.

    Created by `Accelerator.handle_preemption`. Handlers that were installed before are called too (except Python's own
    for Ctrl-C), and `close` restores them.

    Args:
        signals: Signals that ask the run to stop.
        grace_period_s: Time from the signal until the process is killed with ``exit_code``; None means never.
        exit_code: The exit code that `leave` uses.
        end: Called by `leave` before the process exits.

    Raises:
        ConfigError: If a signal cannot be handled, the grace period is not positive, the exit code is out of range,
            or the ranks share no store.
        StateError: Outside the main thread, where signals cannot be handled.
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
        self.grace_period_s = grace_period_s
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

    @property
    def remaining_s(self) -> float | None:
        """Seconds left of the grace period; None if there is no limit, or no rank has been asked to stop."""
        asked_at = self._sync.asked_at
        if asked_at is None or self.grace_period_s is None:
            return None
        return max(0.0, asked_at + self.grace_period_s - time.monotonic())

    def keep_workers(self, loader: DataLoader[Any]) -> None:
        """Keep workers that `loader` starts before `close` alive when a signal arrives, and what resumption needs."""
        accel_data.keep_workers(loader, self._signals)
        loader.keeps_dataset_state = True  # to go on in the middle of an epoch

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
                signal.signal(signum, signal.SIG_DFL if handler is None else handler)
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
        if callable(before) and before is not signal.default_int_handler:
            before(signum, frame)


def check(signals: Sequence[int], *, grace_period_s: float | None, exit_code: int) -> None:
    """Validate the arguments before any handler is installed."""
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
        raise ConfigError(f"`exit_code` must lie between 0 and 255, got {exit_code}.")


def shared_store(number: int) -> Store:
    """Return the store of the process group, with its own prefix and connection.

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
