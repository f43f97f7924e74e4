"""Signals as events of a loop: those of this process, and those that a launcher on another machine sends as lines."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


def known_signals(*names: str) -> tuple[signal.Signals, ...]:
    """Return those of the signals that this operating system has; Windows lacks most."""
    return tuple(signal.Signals[name] for name in names if hasattr(signal, name))


ENDING_SIGNALS = known_signals("SIGINT", "SIGTERM", "SIGHUP")
# They mean what the program takes them for, and do not end a run.
USER_SIGNALS = known_signals("SIGUSR1", "SIGUSR2")
# What stops a background process that reads or sets the terminal.
TERMINAL_STOPS = known_signals("SIGTTIN", "SIGTTOU")
FORWARDED_SIGNALS = (*ENDING_SIGNALS, *USER_SIGNALS)


@contextmanager
def signals_as_events(on_signal: Callable[[int], None]) -> Iterator[int]:
    """Call ``on_signal`` for the signals that are forwarded; yield a descriptor that is readable after any.

    What is ignored stays ignored: `nohup accel launch` must survive a SIGHUP. Handlers are as before
    afterwards. In a thread other than the main one no signal can be heard.
    """

    def handle(signum: int, frame: FrameType | None) -> None:
        if signum != signal.SIGCHLD:
            on_signal(signum)

    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    try:
        if threading.current_thread() is threading.main_thread():
            with _handled(handle, wakes=writer):
                yield reader
        else:
            yield reader
    finally:
        os.close(reader)
        os.close(writer)


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], *, wakes: int) -> Iterator[None]:
    wanted = [signum for signum in FORWARDED_SIGNALS if signal.getsignal(signum) != signal.SIG_IGN]
    before = {signum: signal.signal(signum, handler) for signum in (*wanted, signal.SIGCHLD)}
    descriptor_before = signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    try:
        yield
    finally:
        signal.set_wakeup_fd(descriptor_before)
        for signum, former in before.items():
            # None: a handler that was not set from Python, which cannot be set again
            signal.signal(signum, signal.SIG_DFL if former is None else former)


@contextmanager
def blocked(signums: Iterable[int]) -> Iterator[set[int]]:
    """Let signals wait until afterwards; yield those that were blocked before."""
    before = {int(signum) for signum in signal.pthread_sigmask(signal.SIG_BLOCK, signums)}
    try:
        yield before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def send_to_own_group(signum: int) -> None:
    """Send a signal to all processes of our group but this one, from its only thread."""
    with blocked([signum]):
        os.killpg(os.getpgrp(), signum)
        signal.sigwait([signum])


def clear_events(reader: int) -> None:
    """Take the bytes away that woke the loop."""
    try:
        while os.read(reader, 4096):
            pass
    except BlockingIOError:
        return


_CHUNK = 4096


class RemoteSignals:
    """Reads the number of a signal from each line of a descriptor.

    ``has_ended`` tells that the other side is gone, ``was_told_to_end`` that it sent a signal which ends a run.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""
        self.has_ended = False
        self.was_told_to_end = False

    @classmethod
    def of_standard_input(cls) -> RemoteSignals:
        """Take over the standard input; what is started from now on has an empty one."""
        descriptor = os.dup(0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        return cls(descriptor)

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._descriptor

    def take(self) -> list[int]:
        """Return the signals that have come; waits for some if nothing is there."""
        chunk = os.read(self._descriptor, _CHUNK)
        self.has_ended = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        signums = [int(line) for line in lines]
        self.was_told_to_end |= any(signum in ENDING_SIGNALS for signum in signums)
        return signums
