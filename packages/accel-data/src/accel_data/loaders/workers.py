"""Loader workers and signals: a signal to all of a job does not end workers, and no Ctrl-C during a fork is lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.util import register_after_fork
from types import FrameType
from typing import Any

from torch.utils.data import DataLoader


class WorkerStart:
    """A `worker_init_fn`: afterwards these signals end a worker only if its parent process sends them.

    Schedulers and torchrun signal every process of a job, workers included. A worker that dies makes torch raise
    in the process that uses it, which then cannot save. Programs that a worker starts inherit the blocked signals.
    A spawned worker is protected from its start by `SignalBlockingProcess`; one from a fork server only from here on.

    Args:
        signals: Numbers of the signals, read when a worker starts. Without any, the worker is not changed.
        then: The loader's `worker_init_fn`.
    """

    def __init__(self, signals: Sequence[int], then: Callable[[int], Any] | None) -> None:
        self.signals = signals
        self.then = then

    def __call__(self, worker_id: int) -> None:
        if self.signals:
            # Blocked in this thread and in threads that it starts, they stay pending for `sigwaitinfo`, which returns
            # the sender. A handler could not: Python does not pass the sender to it.
            signal.pthread_sigmask(signal.SIG_BLOCK, self.signals)
            threading.Thread(
                target=_exit_on_signal_of,
                args=(_owner(), tuple(self.signals)),
                name="accel-worker-signals",
                daemon=True,
            ).start()
        if self.then is not None:
            self.then(worker_id)


def _owner() -> int:
    """Return the pid of the process that this one works for; its parent may be a fork server."""
    started_by = multiprocessing.parent_process()
    return os.getppid() if started_by is None or started_by.pid is None else started_by.pid


def _exit_on_signal_of(owner: int, signals: Sequence[int]) -> None:
    """Wait for blocked signals, and end this process at the first one sent by ``owner``."""
    while signal.sigwaitinfo(signals).si_pid != owner:
        pass
    os._exit(0)  # not `sys.exit`: a fork has the `atexit` functions of the training process


class SignalBlockingProcess(SpawnProcess):
    """A spawned process that starts with the signals of the `WorkerStart` among its arguments blocked.

    Before `WorkerStart` runs it imports for seconds, and starts threads.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # private: `multiprocessing` has no public step around the start
        starts = [argument for argument in process_obj._args if isinstance(argument, WorkerStart)]
        signals = {signum for start in starts for signum in start.signals}
        resource_tracker.ensure_running()  # started together with the worker, it would unblock SIGTERM here
        blocked_before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked_before)


class SignalBlockingContext(SpawnContext):
    """The spawn context whose processes are `SignalBlockingProcess`."""

    Process = SignalBlockingProcess


def keep_workers(loader: DataLoader[Any], signals: Sequence[int]) -> None:
    """Make workers that ``loader`` starts from now on ignore ``signals`` from other processes.

    Does nothing if the system does not report the sender of a signal (macOS, Windows).

    Args:
        loader: The loader; its `worker_init_fn` still runs.
        signals: Numbers of the signals; the sequence is read again whenever a worker starts.
    """
    if not loader.num_workers or not hasattr(signal, "sigwaitinfo"):
        return
    start = loader.worker_init_fn
    loader.worker_init_fn = WorkerStart(signals, start.then if isinstance(start, WorkerStart) else start)
    context = loader.multiprocessing_context
    if type(context) is SpawnContext or (
        context is None and multiprocessing.get_start_method(allow_none=True) == "spawn"
    ):
        loader.multiprocessing_context = SignalBlockingContext()


@contextmanager
def forking_workers() -> Iterator[None]:
    """Start loader workers in the body: no Ctrl-C is lost, and workers collect no garbage that they inherit.

    A fork copies no threads, so a finalizer that waits for a thread never returns in a worker. The finalizer of a gloo
    process group does wait, and `destroy_process_group` leaves the group to the garbage collector if a cycle refers to
    it, as a model in `DistributedDataParallel` does.
    """
    start = _Start()
    register_after_fork(start, lambda _: gc.freeze())
    with delayed_interrupt():
        yield


class _Start:
    """`multiprocessing` calls functions registered with an object in each process forked while the object lives."""


@contextmanager
def delayed_interrupt() -> Iterator[None]:
    """Handle a SIGINT that arrives in the body after it, and a second one at once.

    Around a fork, Python calls functions of `logging`, `random` and others, and drops exceptions raised in them: the
    `KeyboardInterrupt` would be lost, and the process continue. Workers that are forked in the body ignore SIGINT;
    torch ends them with their process.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[FrameType | None] = []
    process = os.getpid()

    def note(signum: int, frame: FrameType | None) -> None:
        arrived.append(frame)
        if len(arrived) > 1 and os.getpid() == process:  # the body hangs, perhaps in a user-provided sampler
            handler(signum, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if arrived:
            handler(signal.SIGINT, arrived[-1])
