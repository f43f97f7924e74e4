from __future__ import annotations

import os
import pty
import subprocess
import sys

import pytest

pexpect = pytest.importorskip("pexpect", reason="a terminal is played by pexpect")

SUPERVISOR = """
import sys
from pathlib import Path
from accel_launch.plan import ProcessPlan
from accel_launch.processes.supervision import run_processes
plan = ProcessPlan((sys.executable, "-c", sys.argv[1]), Path.cwd())
ending = run_processes([plan], host_environ={}, grace_period_s=float(sys.argv[2]))
print("ended", ending.children[0].return_code, ending.interrupted_by)
"""

TIDY = """
import time
try:
    print("up")
    time.sleep(30)
except KeyboardInterrupt:
    time.sleep(0.5)  # a second interrupt would come in here
    print("tidy")
"""

# Hears of Ctrl-C only from the kernel, as a program that waits in C.
HANG = """
import os, signal, threading
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
def tell():
    while os.read(reader, 1):
        os.write(1, b"heard\\n")
threading.Thread(target=tell, daemon=True).start()
signal.signal(signal.SIGINT, lambda *_: None)
print("up", flush=True)
import ctypes
mutex = ctypes.create_string_buffer(64)
while True:
    ctypes.CDLL(None).pthread_mutex_lock(mutex)
"""


# A rank whose supervisor somebody waits for.
NOTICE = SUPERVISOR.replace("Path.cwd())", "Path.cwd(), rank=3)")

LEAVES_PROGRAM = """
import signal, subprocess, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
subprocess.Popen(["sleep", "60"], start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""

# Writes meanwhile, as anybody would.
SAVE = """
import os, signal, sys, time
def save(*_):
    for step in range(10):
        print("saving", step, flush=True)
        time.sleep(0.05)
    open({file!r}, "w").close()
    sys.exit()
signal.signal(signal.SIGHUP, save)
os.write(1, b"up\\n")  # `print` in a handler that comes within another `print` raises an error
time.sleep(60)
"""


@pytest.fixture
def terminal():
    spawned = []

    def start(code: str, grace_period_s: float = 120.0, supervisor: str = SUPERVISOR):
        arguments = ["-c", supervisor, code, str(grace_period_s)]
        spawned.append(pexpect.spawn(sys.executable, arguments, timeout=60, encoding="utf-8"))
        return spawned[-1]

    yield start
    for process in spawned:
        process.close(force=True)


def test_the_script_can_read_the_keyboard(terminal):
    session = terminal("print('read', input('name? '))")
    session.expect_exact("name? ")
    session.sendline("Ada")
    session.expect_exact("read Ada")
    session.expect_exact("ended 0 None")


def test_ctrl_c_reaches_the_script_once(terminal):
    session = terminal(TIDY)
    session.expect_exact("up")
    session.sendintr()
    session.expect_exact("tidy")
    session.expect_exact("ended 0 2")


def test_ctrl_c_ends_a_script_that_hangs_after_the_grace_period(terminal):
    session = terminal(HANG, grace_period_s=0.5)
    session.expect_exact("up")
    session.sendintr()
    session.expect_exact("ended -9 2", timeout=30)


def test_a_second_ctrl_c_ends_a_script_that_hangs_at_once(terminal):
    session = terminal(HANG)
    session.expect_exact("up")
    session.sendintr()
    session.expect_exact("heard")
    session.sendintr()
    session.expect_exact("ended -9 2", timeout=30)


def test_a_wait_after_ctrl_c_names_the_ranks_and_what_to_do(terminal):
    session = terminal(HANG, supervisor=NOTICE)
    session.expect_exact("up")
    session.sendintr()
    session.expect(r"Waiting up to \d+ s for rank 3 to end\. Press Ctrl-C again to end the run now\.\r\n")
    session.sendintr()
    session.expect_exact("ended -9 2", timeout=30)


def test_ctrl_c_reaches_a_script_in_a_separate_session(terminal):
    session = terminal("import os; os.setsid()\n" + TIDY)
    session.expect_exact("up")
    session.sendintr()
    session.expect_exact("tidy")
    session.expect_exact("ended 0 2")


def test_a_wait_for_what_a_script_has_left_is_reported_too(terminal):
    session = terminal(LEAVES_PROGRAM)
    session.expect_exact("up")
    session.sendintr()
    session.expect(
        r"Waiting up to \d+ s for what still runs to end\. Press Ctrl-C again to end the run now\.\r\n"
    )
    session.sendintr()
    session.expect_exact("ended -2 2", timeout=30)


def test_a_script_that_is_saving_may_continue_when_the_terminal_is_closed(tmp_path):
    supervisor = SUPERVISOR.replace('print("ended", ', "sys.exit((").replace("_by)", "_by) != (0, 1))")
    code = SAVE.format(file=str(tmp_path / "saved"))
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", supervisor, code, "120"])
    assert os.read(descriptor, 4) == b"up\r\n"
    os.close(descriptor)  # the kernel tells us and the script by a SIGHUP
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (tmp_path / "saved").exists()


def test_ctrl_z_stops_all_processes_of_the_job_and_fg_continues_it(terminal):
    session = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], timeout=60, encoding="utf-8")
    try:
        session.sendline("PS1='ready> '")
        session.expect_exact("ready> ")
        session.sendline(f"{sys.executable} -c '{SUPERVISOR}' 'print(\"up\"); print(\"read\", input())' 60")
        session.expect_exact("up\r\n")
        session.sendcontrol("z")
        session.expect("Stopped")
        session.expect_exact("ready> ")
        session.sendline("fg")
        session.sendline("Ada")
        session.expect_exact("read Ada")
        session.expect_exact("ended 0 None")
    finally:
        session.close(force=True)


def test_output_goes_to_a_terminal_of_the_same_size_where_ours_is_one(terminal):
    code = "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), *os.get_terminal_size(1))"
    session = terminal(code)
    session.expect_exact("True True 80 24\r\n")
    session.expect_exact("ended 0 None")


ASK = "terminal = open('/dev/tty'); print('up'); print('read', terminal.readline().strip())"


@pytest.mark.parametrize(
    "preparation",
    ["import os; os.dup2(os.open('/dev/null', os.O_RDONLY), 0)", "import sys; sys.__stdin__.close()"],
)
def test_a_script_with_another_standard_input_can_ask_at_the_terminal(terminal, preparation):
    """As `getpass` does, and the logins of libraries."""
    session = terminal(ASK, supervisor=preparation + SUPERVISOR)
    session.expect_exact("up")
    session.sendline("Ada")
    session.expect_exact("read Ada")
    session.expect_exact("ended 0 None")


@pytest.fixture
def shell():
    session = pexpect.spawn("bash", ["--norc", "--noprofile", "-i"], timeout=60, encoding="utf-8")
    session.sendline("PS1='ready> '")
    session.expect_exact("ready> ")
    yield session
    session.sendline("kill -9 %1; exit")
    session.close(force=True)


def test_a_run_in_the_background_stops_for_the_keyboard_until_fg(shell):
    shell.sendline(f"{sys.executable} -c '{SUPERVISOR}' 'print(\"read\", input())' 60 &")
    shell.sendline("wait %1")  # until it stops
    shell.expect("Stopped")
    shell.sendline("fg")
    shell.sendline("Ada")
    shell.expect_exact("read Ada")
    shell.expect_exact("ended 0 None")


def test_a_run_that_fg_brings_to_the_foreground_can_read_the_keyboard(shell, tmp_path):
    os.mkfifo(tmp_path / "go")
    code = f'print("up"); open("{tmp_path}/go").read(); print("read", input())'
    shell.sendline(f"{sys.executable} -c '{SUPERVISOR}' '{code}' 60 &")
    shell.expect_exact("up\r\n")
    shell.sendline("fg")
    shell.expect_exact("import sys")  # the shell shows what it continues
    (tmp_path / "go").write_text("")
    shell.sendline("Ada")
    shell.expect_exact("read Ada")
    shell.expect_exact("ended 0 None")


def test_without_a_terminal_there_is_none_to_lend():
    code = "import os; from accel_launch.processes.guard import Terminal; print(Terminal.of_this_session())"
    done = subprocess.run(
        [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"
