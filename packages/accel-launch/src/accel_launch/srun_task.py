"""The program that runs one node's ``accel launch`` for a launcher that reaches it only through ``srun``.

``python -P -m accel_launch.srun_task GRACE_PERIOD_S COMMAND...``: each line of its standard input is the number of a
signal for the command (srun itself would turn a SIGTERM into a SIGKILL). The end of the input means that the
launcher is gone: the command is killed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from accel_launch.plan import ProcessPlan
from accel_launch.processes.child import exit_code_for_shell
from accel_launch.processes.signals import RemoteSignals
from accel_launch.processes.supervision import run_processes
from accel_state.environment import snapshot


def main() -> int:
    """Run the command; return its exit code, or 0 if the launcher has ended it."""
    grace_period_s, *command = sys.argv[1:]
    launcher = RemoteSignals.of_standard_input()
    ending = run_processes(
        [ProcessPlan(tuple(command), Path.cwd())],
        host_environ=snapshot(),
        grace_period_s=float(grace_period_s),
        remote_signals=launcher,
    )
    # The launcher knows. From any other exit code srun would kill the nodes that are still saving.
    return 0 if launcher.was_told_to_end else exit_code_for_shell(ending.children[0].return_code)


if __name__ == "__main__":
    sys.exit(main())
