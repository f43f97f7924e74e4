"""The program that runs one node's ``accel launch`` for a launcher that reaches it only through ``srun``.

``python -P -m accel_launch.step GRACE_PERIOD_S COMMAND...``: each line of its standard input is the number of a
signal for the command (srun itself would turn a SIGTERM into a SIGKILL). The end of the input means that the
launcher is gone: the command is killed.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import IO

from accel_launch.orders import obey
from accel_launch.plan import ProcessPlan
from accel_launch.processes.ending import exit_code_for_shell
from accel_launch.processes.supervision import run_processes
from accel_state.environment import snapshot


def main() -> int:
    """Run the command; return its exit code, or 0 if the launcher has ended it."""
    grace_period_s, *command = sys.argv[1:]
    orders = _taken_input()
    was_told = threading.Event()
    threading.Thread(target=obey, args=(orders, was_told), daemon=True).start()
    ending = run_processes(
        [ProcessPlan(tuple(command), Path.cwd())],
        host_environ=snapshot(),
        grace_period_s=float(grace_period_s),
    )
    # The launcher knows. From any other exit code srun would kill the nodes that are still saving.
    return 0 if was_told.is_set() else exit_code_for_shell(ending.children[0].return_code)


def _taken_input() -> IO[bytes]:
    """Return our standard input, and leave an empty one to the command."""
    # Unbuffered, since a thread that waits within a buffer's lock would disturb the end of the program.
    orders = open(os.dup(0), "rb", buffering=0)  # noqa: SIM115, PTH123
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return orders


if __name__ == "__main__":
    sys.exit(main())
