"""Signals from a launcher on another machine: lines of our standard input, whose end says that it is gone."""

from __future__ import annotations

import os

from accel_launch.processes.signals import ENDING_SIGNALS

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
