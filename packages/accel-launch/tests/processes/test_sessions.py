from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from accel_launch.processes.sessions import own_sessions

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


PASSES_ON = """
import signal, subprocess, sys
from accel_launch.processes.sessions import pass_on_to_sessions
leader = subprocess.Popen(sys.argv[1:], start_new_session=True)
follower = subprocess.Popen(sys.argv[1:])
pass_on_to_sessions(signal.SIGUSR1, None)
print(leader.wait(timeout=60), follower.poll())
follower.kill()
"""


def test_only_children_that_lead_a_session_are_found(start):
    before = own_sessions()
    leader, _ = start(start_new_session=True), start()
    assert set(own_sessions()) - set(before) == {leader.pid}


def test_only_children_that_lead_a_session_hear_of_a_signal():
    """In a process of its own: the one that runs tests has other sessions."""
    done = subprocess.run(
        [sys.executable, "-c", PASSES_ON, *WAIT], stdout=subprocess.PIPE, text=True, check=True
    )
    assert done.stdout.split() == [str(-signal.SIGUSR1), "None"]


def test_what_has_ended_is_no_session(start):
    leader = start(start_new_session=True)
    leader.kill()
    leader.wait()
    assert leader.pid not in own_sessions()
