"""Whatever ends a run, nothing of it is left: {how it ends} x {1, 2, 4 processes}, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import pytest

# The last rank does what its argument says, the others wait; each tells its pid once it is ready.
SCRIPT = """
import os, signal, sys, time
is_last = int(os.environ.get("RANK", 0)) == int(os.environ.get("WORLD_SIZE", 1)) - 1
action = sys.argv[1] if is_last else "wait"
if action == "ignore":
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
else:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
print("pid", os.getpid(), flush=True)
if action in ("wait", "ignore"):
    time.sleep(60)
sys.stdin.readline()
if action == "raise":
    raise ValueError("told to raise")
if action.startswith("SIG"):
    os.kill(os.getpid(), getattr(signal, action))
sys.exit(int(action))
"""
GRACE_PERIOD_S = 0.5


@dataclass
class Run:
    process: subprocess.Popen[str]
    pids: Sequence[int]

    def end(self) -> int:
        """Wait for the launcher, then for whatever it started, and return its exit code."""
        try:
            self.process.communicate("go\n" * 4, timeout=60)
            deadline = time.monotonic() + 20
            while any(map(is_running, self.pids)):
                assert time.monotonic() < deadline, "a rank outlived the launcher"
                time.sleep(0.01)
            return self.process.returncode
        finally:
            self.process.kill()
            for pid in filter(is_running, self.pids):
                os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def start(tmp_path, no_user_config):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)

    def start_run(action: str, num_processes: int) -> Run:
        flags = ["--cpu", f"--num_processes={num_processes}", f"--grace_period_s={GRACE_PERIOD_S}"]
        process = subprocess.Popen(
            [sys.executable, "-m", "accel_launch", "launch", *flags, str(script), action],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | no_user_config,
            start_new_session=True,
        )
        return Run(process, [int(process.stdout.readline().split()[1]) for _ in range(num_processes)])

    return start_run


@pytest.mark.parametrize("num_processes", [1, 2, 4])
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_the_launcher_ends_every_rank(start, signum, num_processes):
    run = start("wait", num_processes)
    run.process.send_signal(signum)
    assert run.end() == 128 + signum


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_no_rank_outlives_a_launcher_that_is_killed(start, num_processes):
    run = start("ignore", num_processes)
    run.process.kill()
    assert run.end() == -signal.SIGKILL


@pytest.mark.parametrize("num_processes", [1, 2, 4])
@pytest.mark.parametrize(
    ("action", "exit_code"), [("SIGSEGV", 139), ("SIGKILL", 137), ("raise", 1), ("3", 3)]
)
def test_a_rank_that_fails_ends_the_others_and_gives_its_exit_code(start, action, exit_code, num_processes):
    assert start(action, num_processes).end() == exit_code


@pytest.mark.parametrize("num_processes", [1, 2, 4])
def test_a_rank_that_hangs_is_killed_after_the_grace_period(start, num_processes):
    run = start("ignore", num_processes)
    run.process.terminate()
    began = time.monotonic()
    assert run.end() == (137 if num_processes == 1 else 143)
    assert time.monotonic() - began < 15  # of a grace period of 30, if the flag had no effect


def test_a_process_that_the_launcher_did_not_start_is_left_unchanged(start):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as stranger:
        assert start("3", 2).end() == 3
        assert stranger.poll() is None
        stranger.kill()
