"""Loader workers that outlive a signal to the whole job, so that the training they work for can save."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Sequence
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

from torch.utils.data import DataLoader


class WorkerStart:
    """What a worker runs first: from then on these signals end it only if its own process sends them.

    Schedulers and torchrun signal every process of a job, workers included. torch lets such a worker die, and
    raises in the process that has lost it, which then cannot save. Workers have nothing to save: they go when
    their loader lets them go, or ends them. Programs that a worker starts do not hear the signals either. What
    a spawned worker does before it comes here, and in which threads, is the care of `SpawnedQuietly`; a worker
    from a fork server hears the signals until then.

    Args:
        signals: Numbers of the signals, looked up when a worker starts: while there are none, it is as ever.
        then: The loader's own `worker_init_fn`.
    """

    def __init__(self, signals: Sequence[int], then: Callable[[int], Any] | None) -> None:
        self.signals = signals
        self.then = then

    def __call__(self, worker_id: int) -> None:
        if self.signals:
            # Blocked here and in all threads to come, they wait for the one thread that asks who sent them.
            signal.pthread_sigmask(signal.SIG_BLOCK, self.signals)
            obeying = threading.Thread(
                target=obey, args=(tuple(self.signals), owner()), name="accel-worker", daemon=True
            )
            obeying.start()
        if self.then is not None:
            self.then(worker_id)


def owner() -> int:
    """Return the process that this one works for, which is not its parent if a fork server made it."""
    started_by = multiprocessing.parent_process()
    return os.getppid() if started_by is None or started_by.pid is None else started_by.pid


def obey(signals: Sequence[int], parent: int) -> None:
    """Wait for blocked signals, and end this process at the first that `parent` has sent."""
    while signal.sigwaitinfo(signals).si_pid != parent:
        pass
    os._exit(0)


class SpawnedQuietly(SpawnProcess):
    """A spawned process whose signals, those of the `WorkerStart` among its arguments, are blocked from its birth.

    It takes seconds to import what it needs before it comes to `WorkerStart`, and has threads by then.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        starts = [argument for argument in process_obj._args if isinstance(argument, WorkerStart)]
        signals = {signum for start in starts for signum in start.signals}
        resource_tracker.ensure_running()  # else it is started with the worker, and unblocks SIGTERM here
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


class QuietSpawnContext(SpawnContext):
    """Spawns processes as `SpawnedQuietly`."""

    Process = SpawnedQuietly


def keep_workers(loader: DataLoader[Any], signals: Sequence[int]) -> None:
    """Make workers that `loader` starts from now on outlive `signals`, where the system can tell senders."""
    if not loader.num_workers or not hasattr(signal, "sigwaitinfo"):
        return
    start = loader.worker_init_fn
    loader.worker_init_fn = WorkerStart(signals, start.then if isinstance(start, WorkerStart) else start)
    context = loader.multiprocessing_context
    if type(context) is SpawnContext or (
        context is None and multiprocessing.get_start_method(allow_none=True) == "spawn"
    ):
        loader.multiprocessing_context = QuietSpawnContext()
