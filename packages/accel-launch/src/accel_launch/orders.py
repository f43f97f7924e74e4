"""What a program obeys that a launcher on another machine has started: signals, as lines of its input."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import IO

from accel_launch.processes.signals import ENDING_SIGNALS

# After an interrupt a second one kills at once, so this is how to kill from another thread.
_KILL = (signal.SIGINT, signal.SIGINT)


def obey(orders: IO[bytes], was_told: threading.Event) -> None:
    """Send this process the signals whose numbers are the lines of ``orders``; at their end, what kills a run.

    Sets ``was_told`` as soon as there was one that ends a run.
    """
    for line in orders:
        signum = int(line)
        if signum in ENDING_SIGNALS:
            was_told.set()
        os.kill(os.getpid(), signum)
    for signum in _KILL:
        os.kill(os.getpid(), signum)
        time.sleep(0.2)  # two that arrive together would be one
