"""Nothing of a run is left: {signal} x {whom it hits}, where what trains hangs in C below a wrapper of each rank."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's help")

# Python's handlers run when C returns, which it never does.
HANG = """
import ctypes, os, signal, sys
for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(signum, lambda *_: None)
if "own-session" in sys.argv:
    os.setsid()
print("hangs", os.getpid(), flush=True)
mutex = ctypes.create_string_buffer(64)
while True:
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""
WRAPPER = """
import os, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
print("wraps", os.getpid(), flush=True)
sys.exit(subprocess.run([sys.executable, *sys.argv[1:]]).returncode != 0)
"""
SAVE = """
import signal, sys, time
def save(*_):
    time.sleep(0.5)
    open("saved", "w").close()
    sys.exit()
signal.signal(signal.SIGTERM, save)
print("trains 0", flush=True)
time.sleep(60)
"""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)


class Run:
    """A launch whose processes are known by a variable, whatever became of their parents."""

    def __init__(
        self, folder: Path, environ: dict[str, str], *command: str, grace_period_s: float = 0.3
    ) -> None:
        self._mark = str(folder)
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "accel_launch",
                "launch",
                "--cpu",
                f"--grace_period_s={grace_period_s}",
                *command,
            ],
            cwd=folder,
            env=os.environ | environ | {"TEST_RUN": self._mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def read(self, num_lines: int) -> dict[str, list[int]]:
        """Return the process numbers in the next lines, by the word before them."""
        told: dict[str, list[int]] = {}
        for _ in range(num_lines):
            word, pid = self.process.stdout.readline().split()
            told.setdefault(word, []).append(int(pid))
        return told

    def processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return (
                process.environ().get("TEST_RUN") == self._mark and process.status() != psutil.STATUS_ZOMBIE
            )
        except psutil.Error:
            return False

    def wait_for_nothing_left(self) -> None:
        self.process.wait(timeout=60)
        deadline = time.monotonic() + 20
        while self.processes():
            assert time.monotonic() < deadline, f"orphans: {self.processes()}"
            time.sleep(0.02)

    def close(self) -> None:
        for process in self.processes():
            process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path, no_user_config):
    for name, code in (("hang.py", HANG), ("wrapper.py", WRAPPER), ("save.py", SAVE)):
        (tmp_path / name).write_text(code)
    runs = []

    def start_run(*command: str, **options: float) -> Run:
        runs.append(Run(tmp_path, no_user_config, *command, **options))
        return runs[-1]

    yield start_run
    for run in runs:
        run.close()


@pytest.mark.parametrize("whom", ["launcher", "supervisor", "wrapper", "what hangs"])
@pytest.mark.parametrize("signum", ENDING)
def test_nothing_is_left(start, signum, whom):
    run = start("--num_processes=2", "wrapper.py", "hang.py")
    told = run.read(4)
    wrapper = told["wraps"][0]
    pids = {
        "launcher": run.process.pid,
        "supervisor": psutil.Process(wrapper).ppid(),
        "wrapper": wrapper,
        "what hangs": told["hangs"][0],
    }
    os.kill(pids[whom], signum)
    if whom == "what hangs" and signum != signal.SIGKILL:
        run.process.terminate()  # it does not even notice
    run.wait_for_nothing_left()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("command", [["hang.py"], ["wrapper.py", "hang.py"]])
def test_nothing_is_left_in_a_separate_session(start, command, signum):
    run = start(*command, "own-session")
    run.read(len(command))
    run.process.send_signal(signum)
    run.wait_for_nothing_left()


def test_a_rank_in_a_separate_session_ends_when_another_fails(start, tmp_path):
    (tmp_path / "one.sh").write_text(
        '[ "$RANK" = 1 ] || exec "$0" hang.py own-session\nread -r _ < go; exit 3\n'
    )
    os.mkfifo(tmp_path / "go")
    run = start(
        "--num_processes=2", "--no_python", "bash", "-c", (tmp_path / "one.sh").read_text(), sys.executable
    )
    run.read(1)
    (tmp_path / "go").write_text("\n")
    run.wait_for_nothing_left()
    assert run.process.returncode == 3


@pytest.mark.parametrize(
    "command", [["--no_python", "bash", "-c", f"{sys.executable} save.py; true"], ["wrapper.py", "save.py"]]
)
def test_what_a_wrapper_has_started_has_the_grace_period_to_save(start, tmp_path, command):
    run = start(*command, grace_period_s=60)
    while "trains" not in run.read(1):
        pass
    run.process.terminate()
    run.wait_for_nothing_left()
    assert (tmp_path / "saved").exists()
    assert run.process.returncode == 128 + signal.SIGTERM


def test_what_a_run_that_succeeded_left_in_the_background_continues(start):
    run = start("--no_python", "bash", "-c", "sleep 60 > /dev/null 2>&1 & echo sleeps $!")
    (pid,) = run.read(1)["sleeps"]
    assert run.process.wait(timeout=60) == 0
    assert psutil.pid_exists(pid)
