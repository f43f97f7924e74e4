"""What tests start in network namespaces is gone after them, however they end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from network_namespace import ip

pytestmark = pytest.mark.engine("ssh")
RUN = """
import time
from network_namespace import daemon, network_namespace, sigterm_like_ctrl_c

with sigterm_like_ctrl_c(), network_namespace("run") as name, daemon(name, ["sleep", "600"]) as process:
    print(name, process.pid, flush=True)
    time.sleep(600)
"""


def ended_by(signum: int) -> tuple[str, psutil.Process]:
    """Start a run, end it with a signal, and return its namespace and its daemon."""
    with subprocess.Popen(
        [sys.executable, "-c", RUN],
        cwd=Path(__file__).parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as run:
        name, pid = run.stdout.readline().split()
        daemon = psutil.Process(int(pid))
        deadline = time.monotonic() + 60
        while (
            daemon.name() != "sleep" and time.monotonic() < deadline
        ):  # it was `setpriv` and `nsenter` before
            time.sleep(0.01)
        run.send_signal(signum)
    return name, daemon


def has_ended(process: psutil.Process) -> bool:
    try:
        process.wait(timeout=30)
    except psutil.TimeoutExpired:
        return process.status() == psutil.STATUS_ZOMBIE
    return True


def names() -> list[str]:
    return [line.split()[0] for line in ip("netns", "list").splitlines()]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_of_a_run_that_is_requested_to_end(signum):
    name, daemon = ended_by(signum)
    assert has_ended(daemon)
    assert name not in names()
