from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from accel_launch.plan import ProcessPlan
from accel_launch.processes.supervision import RunEnding, run_processes

# A launcher in little: supervises the programs it is given and prints how they ended.
SUPERVISOR = """
import sys
from pathlib import Path
from accel_launch.plan import ProcessPlan
from accel_launch.processes.supervision import run_processes
grace_period_s, *codes = sys.argv[1:]
plans = [ProcessPlan((sys.executable, "-c", code), Path.cwd()) for code in codes]
ending = run_processes(plans, host_environ={}, grace_period_s=float(grace_period_s))
print(*(child.return_code for child in ending.children), ending.interrupted_by, flush=True)
"""
# Each child reports when it is ready by a line with its pid.
PATIENT = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
STUBBORN = "import signal; [signal.signal(s, signal.SIG_IGN) for s in (1, 2, 15)]; " + PATIENT
ORDERLY = "import signal, sys; signal.signal(15, lambda *_: sys.exit(7)); " + PATIENT
WITH_GRANDCHILD = (
    "import subprocess, sys, time; "
    f"grandchild = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]); "
    "time.sleep(60)"
)


# As `timeout 3600 python train.py` in a script of the shell, which ends at once.
WITH_JOB = (
    "import subprocess, sys, time; "
    f"subprocess.Popen([sys.executable, '-c', {ORDERLY.replace('sys.exit(7)', 'print(7, flush=True)')!r}], "
    "process_group=0); time.sleep(60)"
)


class Supervisor:
    def __init__(self, *codes: str, grace_period_s: float = 120.0) -> None:
        command = [sys.executable, "-c", SUPERVISOR, str(grace_period_s), *codes]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        self.pids_told = [int(self.line()) for _ in codes]

    def line(self) -> str:
        return self.process.stdout.readline()

    def send(self, signum: int) -> None:
        self.process.send_signal(signum)

    def end(self) -> str:
        last = self.process.stdout.read()
        self.process.wait(timeout=150)
        self.process.stdout.close()
        return last.strip()


def run(*codes: str, **options) -> RunEnding:
    plans = [ProcessPlan((sys.executable, "-c", code), Path.cwd()) for code in codes]
    return run_processes(plans, host_environ={}, **options)


def is_gone(pid: int, within_s: float = 5.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return True  # dead, and waiting for an init that reaps late
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(signum):
    supervisor = Supervisor(PATIENT)
    supervisor.send(signum)
    assert supervisor.end() == f"-{int(signum)} {int(signum)}"
    assert is_gone(supervisor.pids_told[0])


@pytest.mark.parametrize("signum", [signal.SIGUSR1, signal.SIGUSR2])
def test_what_a_signal_of_the_users_own_means_is_left_to_the_child(signum):
    # Not by `print`, which may be at work when the signal comes.
    deaf = f"import os, signal; signal.signal({int(signum)}, lambda *_: os.write(1, b'heard\\n')); " + PATIENT
    supervisor = Supervisor(deaf, grace_period_s=0.1)
    supervisor.send(signum)
    assert supervisor.line() == "heard\n"
    supervisor.send(signal.SIGTERM)
    assert supervisor.end() == f"-15 {int(signal.SIGTERM)}"


def test_a_child_may_end_in_its_own_way():
    supervisor = Supervisor(ORDERLY)
    supervisor.send(signal.SIGTERM)
    assert supervisor.end() == "7 15"


def test_a_child_that_ignores_the_signal_is_killed_after_the_grace_period():
    supervisor = Supervisor(STUBBORN, grace_period_s=0.3)
    supervisor.send(signal.SIGTERM)
    assert supervisor.end() == "-9 15"
    assert is_gone(supervisor.pids_told[0])


def test_a_second_interrupt_does_not_wait_for_the_grace_period():
    supervisor = Supervisor(STUBBORN)
    supervisor.send(signal.SIGINT)
    time.sleep(0.2)  # two that arrive together would be one
    supervisor.send(signal.SIGINT)
    assert supervisor.end() == "-9 2"


def test_what_the_child_started_ends_with_it_or_is_killed_after_the_grace_period():
    supervisor = Supervisor(WITH_GRANDCHILD, grace_period_s=0.5)
    supervisor.send(signal.SIGTERM)
    assert supervisor.end() == "-15 15"
    assert is_gone(supervisor.pids_told[0])


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere only the group is known")
def test_what_the_child_started_in_a_separate_group_learns_of_the_end():
    supervisor = Supervisor(WITH_JOB, grace_period_s=1.0)
    supervisor.send(signal.SIGTERM)
    assert supervisor.end().split() == ["7", "-15", "15"]


@pytest.mark.skipif(sys.platform != "linux", reason="needs the kernel's help")
def test_the_child_does_not_outlive_a_launcher_that_is_killed():
    supervisor = Supervisor(PATIENT)
    supervisor.send(signal.SIGKILL)
    supervisor.end()
    assert is_gone(supervisor.pids_told[0], within_s=20)


def test_handlers_are_as_before_afterwards():
    watched = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    before = [signal.getsignal(signum) for signum in watched]
    ending = run("raise SystemExit(4)")
    assert ([child.return_code for child in ending.children], ending.interrupted_by) == ([4], None)
    assert [signal.getsignal(signum) for signum in watched] == before


def test_a_signal_that_is_ignored_stays_ignored():
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); " + SUPERVISOR.strip()
    run = subprocess.run(
        [sys.executable, "-c", ignoring, "1", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.split() == ["True", "0", "None"]


# Waits until the process whose pid is in the file that is named has been waited for.
UNTIL_GONE = """
def is_there(file):
    try:
        os.kill(int(open(file).read()), 0)
    except ProcessLookupError:
        return False
    except (FileNotFoundError, ValueError):
        pass
    return True
while is_there({file!r}):
    time.sleep(0.01)
"""


@pytest.fixture
def when_ready(tmp_path):
    """Return code that leaves word, and code that waits for it."""
    file = str(tmp_path / "ready")
    leave_word = f"open({file!r}, 'w').close(); "
    wait = f"import os, time\nwhile not os.path.exists({file!r}): time.sleep(0.01)\n"
    return leave_word, wait


def test_one_that_fails_ends_the_others_and_is_the_only_one_that_was_not_asked_to(when_ready, tmp_path):
    leave_word, wait = when_ready
    pid = str(tmp_path / "pid")
    first = wait + UNTIL_GONE.format(file=pid) + "raise SystemExit(3)"
    third = f"import os; open({pid!r}, 'w').write(str(os.getpid()))"
    ending = run(first, leave_word + "import time; time.sleep(60)", third)
    assert [child.return_code for child in ending.children] == [3, -15, 0]
    assert [child.was_ended for child in ending.children] == [False, True, False]
    assert [child.failed_at is not None for child in ending.children] == [True, True, False]


def test_others_that_do_not_end_are_killed_after_the_grace_period(when_ready):
    leave_word, wait = when_ready
    stubborn = STUBBORN.replace("print", leave_word + "print")
    ending = run(wait + "raise SystemExit(3)", stubborn, grace_period_s=0.1)
    assert [child.return_code for child in ending.children] == [3, -9]


def test_a_signal_reaches_every_child():
    supervisor = Supervisor(PATIENT, PATIENT, PATIENT)
    supervisor.send(signal.SIGTERM)
    assert supervisor.end() == "-15 -15 -15 15"
    assert all(is_gone(pid) for pid in supervisor.pids_told)


def test_failing_counts_from_the_traceback_and_not_from_the_end(when_ready):
    leave_word, wait = when_ready
    slow_to_end = f"import atexit, time\ndef end():\n    {leave_word}time.sleep(60)\natexit.register(end)\n"
    first, second = run(
        slow_to_end + "raise ValueError('first')", wait + "time.sleep(0.3); raise SystemExit(9)"
    ).children
    assert first.failed_at < second.failed_at
    assert first.last_lines[-1] == "ValueError: first"


def test_what_children_write_is_passed_on_with_their_prefixes(capfd):
    codes = ("print('one'); print('two')", "import sys; sys.stderr.write('three')")
    run(*codes, prefixes=["a| ", "b| "])
    seen = capfd.readouterr()
    assert seen.out == "a| one\na| two\n"
    assert seen.err == "b| three\n"


def test_a_program_that_cannot_be_started_leaves_nothing_behind():
    plans = [
        ProcessPlan((sys.executable, "-c", "import time; time.sleep(60)"), Path.cwd()),
        ProcessPlan((sys.executable,), Path("/there/is/no/such/folder")),
    ]
    before = psutil.Process().children()  # other tests' worlds, kept for the whole run
    with pytest.raises(FileNotFoundError):
        run_processes(plans, host_environ={})
    assert psutil.Process().children() == before
