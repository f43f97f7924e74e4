from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from accel_launch.processes.sessions import own_sessions, pass_on_to_sessions

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
WAIT = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)"]


@pytest.fixture
def start():
    started: list[subprocess.Popen[bytes]] = []

    def run(**how: bool) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(WAIT, **how))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_only_children_that_lead_a_session_hear_of_a_signal(start):
    before = own_sessions()
    leader, follower = start(start_new_session=True), start()
    assert set(own_sessions()) - set(before) == {leader.pid}
    os.kill(leader.pid, signal.SIGSTOP)  # so that it cannot end before it is looked at
    pass_on_to_sessions(signal.SIGUSR1, None)
    os.kill(leader.pid, signal.SIGCONT)
    assert leader.wait(timeout=30) == -signal.SIGUSR1
    assert follower.poll() is None


def test_what_has_ended_is_no_session(start):
    leader = start(start_new_session=True)
    leader.kill()
    leader.wait()
    assert leader.pid not in own_sessions()
