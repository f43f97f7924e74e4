from __future__ import annotations

import os
import signal
import time

from accel_launch.processes.forks import start_fork
from accel_launch.processes.signals import signals_as_events
from accel_state.environment import snapshot


def test_a_signal_that_comes_before_the_fork_is_ready_is_not_lost():
    """As when the first of several ranks interrupts the run while the last is being forked."""
    heard: list[int] = []
    with signals_as_events(heard.append):
        for _ in range(5):
            pid = start_fork(
                lambda: time.sleep(5), name="Rank 0", environ=snapshot(), stdout=1, stderr=2, inherited=()
            )
            os.kill(pid, signal.SIGTERM)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert heard == []


def test_a_fork_has_the_variables_and_streams_that_it_is_given(tmp_path):
    with (tmp_path / "out").open("w") as stdout, (tmp_path / "err").open("w") as stderr:
        code = "import os, sys; print(os.environ['NAME'], flush=True); os.write(2, b'x'); raise SystemExit(3)"
        pid = start_fork(
            lambda: os.execlp("python", "python", "-c", code),
            name="Rank 0",
            environ=snapshot() | {"NAME": "value"},
            stdout=stdout.fileno(),
            stderr=stderr.fileno(),
            inherited=(),
        )
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("value\n", "x")
