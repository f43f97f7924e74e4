from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

WAIT = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(75)); print('up', flush=True); time.sleep(60)"


@pytest.fixture
def start():
    started = []

    def start_step(code: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "accel_launch.srun_task", "5", sys.executable, "-c", code]
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True))
        return started[-1]

    yield start_step
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stdin.close()


def test_a_signal_in_the_input_reaches_the_command_and_srun_sees_no_failure(start):
    step = start(WAIT)
    assert step.stdout.readline() == "up\n"
    step.stdin.write("15\n")
    step.stdin.flush()
    assert step.wait(timeout=60) == 0


def test_a_signal_that_ends_nothing_leaves_the_exit_code_of_the_command(start):
    step = start(WAIT.replace("signal(15", "signal(10"))
    assert step.stdout.readline() == "up\n"
    step.stdin.write("10\n")
    step.stdin.flush()
    assert step.wait(timeout=60) == 75


def test_a_signal_from_elsewhere_gives_the_exit_code_of_the_command(start):
    step = start(WAIT)
    assert step.stdout.readline() == "up\n"
    step.terminate()
    assert step.wait(timeout=60) == 75


def test_the_command_is_killed_once_the_launcher_is_gone(start):
    stubborn = "import os, signal, time; signal.signal(2, signal.SIG_IGN); print(os.getpid(), flush=True); "
    step = start(stubborn + "time.sleep(60)")
    pid = int(step.stdout.readline())
    step.stdin.close()
    assert step.wait(timeout=60) == 128 + signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_the_input_is_not_the_command_s(start):
    step = start("import sys; sys.exit(3 if sys.stdin.read() == '' else 4)")
    assert step.wait(timeout=60) == 3
