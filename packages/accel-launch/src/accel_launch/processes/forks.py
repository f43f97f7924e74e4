"""Processes that are forks of this one and call a function, as the ranks of a notebook are."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping

from accel_launch.processes.parent_death import end_with_parent
from accel_launch.processes.signals import FORWARDED_SIGNALS, blocked
from accel_state.environment import restore


def start_fork(
    function: Callable[[], object],
    *,
    name: str,
    environ: Mapping[str, str],
    stdout: int,
    stderr: int,
    inherited: Iterable[int],
) -> int:
    """Return the number of a new process that calls ``function`` and ends, at the latest, with this one.

    It writes to ``stdout`` and ``stderr``, closes the descriptors ``inherited`` and takes signals as any new process
    does. An exception goes to its standard error, after ``name``, and makes its exit code 1. The caller waits for it.
    """
    import multiprocessing  # which a launch of programs does without

    with blocked(FORWARDED_SIGNALS) as blocked_before:  # until the fork takes them as a new process does
        arguments = (function, dict(environ), stdout, stderr, tuple(inherited), os.getpid(), blocked_before)
        process = multiprocessing.get_context("fork").Process(target=_run, args=arguments, name=name)
        process.start()
    process._popen.returncode = 0  # type: ignore[attr-defined]  # else `multiprocessing` may wait for it before us
    assert process.pid is not None
    return process.pid


def _run(
    function: Callable[[], object],
    environ: dict[str, str],
    stdout: int,
    stderr: int,
    inherited: tuple[int, ...],
    parent_pid: int,
    blocked_signals: set[int],
) -> None:
    end_with_parent(parent_pid)
    signal.set_wakeup_fd(-1)
    for signum in (*FORWARDED_SIGNALS, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    for descriptor in inherited:
        os.close(descriptor)
    restore(environ)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked_signals)
    function()
