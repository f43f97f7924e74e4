"""Scripts forked from a process that has torch imported behave as those that Python starts, and none is left behind."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from accel_state.errors import ConfigError
from tools.harness.fork_server import ForkServer, fork_server
from tools.harness.scripts import (
    Script,
    is_alive,
    kill_tree,
    run_command,
    run_script,
    start_ranks,
    wait_for_ranks,
)
from tools.workspace import ROOT

LOOK = """
import json, os, sys
print(json.dumps([__name__, sys.argv, sys.path[0], os.getcwd(), os.environ.get("WORD"), "RANK" in os.environ]))
print("to stderr", file=sys.stderr)
"""
ENDINGS = {
    "exit code": ("raise SystemExit(3)", 3),
    "text": ("raise SystemExit('no more')", 1),
    "error": ("raise KeyError('lost')", 1),
    "interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "exit handler": ("import atexit; atexit.register(print, 'at the end')", 0),
    "object": ("class Last:\n    def __del__(self): print('at the end')\nlast = Last()", 0),
    "output from C": ("import ctypes; ctypes.CDLL(None).puts(b'at the end')", 0),
    "thread": ("import threading; threading.Timer(0.1, print, ['at the end']).start()", 0),
}


def is_running(pid):
    return psutil.pid_exists(pid) and is_alive(psutil.Process(pid))


def test_a_script_sees_what_it_would_see_if_python_had_started_it(tmp_path):
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    options = {"env": {"WORD": "hello", "PYTHONPATH": "/extra"}, "cwd": tmp_path}
    forked = run_script(script, "a b", "--flag", **options)
    started = run_command([sys.executable, str(script), "a b", "--flag"], **options)
    assert (forked.returncode, forked.stdout, forked.stderr) == (0, started.stdout, started.stderr)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_if_python_had_started_it(ending):
    body, exit_code = ENDINGS[ending]
    forked, started = run_script("-c", body), run_command([sys.executable, "-c", body])
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.returncode == exit_code
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


def test_random_numbers_differ_between_scripts():
    draw = "import random, numpy; print(random.random(), numpy.random.random())"
    first, second = (run_script("-c", draw, preload=("numpy",)).stdout.split() for _ in range(2))
    assert len({*first, *second}) == 4


def test_a_variable_that_is_read_at_import_is_refused():
    with pytest.raises(ConfigError, match="`TORCH_LOGS` is read while"):
        Script(["-c", "pass"], env={"PYTHONPATH": "x", "TORCH_LOGS": "x"})


def test_ranks_that_wait_for_a_failed_one_are_killed_after_the_grace_period(monkeypatch):
    monkeypatch.setattr("tools.harness.scripts._GRACE_S", 0.2)
    wait = "import os, time\nif os.environ['RANK'] == '0': raise SystemExit(4)\ntime.sleep(60)"
    with start_ranks(["-c", wait], 2) as ranks:
        assert wait_for_ranks(ranks) == 4
        waiting = ranks[1].process.pid
        assert is_running(waiting)
    assert not is_running(waiting)


def test_an_error_while_ranks_run_tells_what_they_do():
    hang = (
        "import os, time\n"
        "def hang(): time.sleep(60)\n"
        "if os.environ['RANK'] == '0': raise SystemExit('no more')\n"
        "print('begun', flush=True); hang()"
    )
    with pytest.raises(ValueError, match="late") as raised, start_ranks(["-c", hang], 2) as ranks:
        ranks[1].wait_for_output("begun")
        ranks[0].process.wait(timeout=60)
        raise ValueError("late")
    (note,) = raised.value.__notes__
    ended, hanging = note.split("--- rank 1 ")
    assert "ended with exit code 1" in ended
    assert "no more" in ended
    assert "begun" in hanging
    assert "in hang" in hanging


def test_a_script_finds_imported_what_it_is_to_find():
    look = "import sys; print('torch' in sys.modules, 'wave' in sys.modules)"
    for preload in ((), ("wave",)):
        assert run_script("-c", look, preload=preload).stdout == f"True {bool(preload)}\n"


def test_scripts_end_with_the_server():
    server = ForkServer(origin=fork_server())
    with open(os.devnull, "rb+") as nothing:
        argv = ("-c", "import time; time.sleep(300)")
        process = server.start(argv, environ=os.environ, streams=[nothing] * 3)
    running = psutil.Process(process.pid)
    server.close()
    assert psutil.wait_procs([running], timeout=60)[1] == []


def test_a_server_that_ended_is_started_again_with_a_warning():
    before = fork_server(("wave",))
    before.process.kill()
    before.process.wait()
    with pytest.warns(UserWarning, match="exit code -9, and it wrote"):
        assert run_script("-c", "print(1)", preload=("wave",)).stdout == "1\n"
    assert fork_server(("wave",)) is not before


def test_time_is_up_kills_grandchildren_too_and_shows_the_output():
    grandchild = "import time; time.sleep(60)"
    child = (
        "import subprocess, sys\n"
        f"process = subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True)\n"
        "print(process.pid, flush=True)\nprocess.wait()"
    )
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_command([sys.executable, "-c", child], timeout_s=3)
    assert not is_running(int(caught.value.stdout))


PARENT = """
import os, sys, threading, time
folder = sys.argv[1]
sys.path.insert(0, folder)
from body import sleep
from tools.harness.world import World
world = World(2)
threading.Thread(target=world.run, args=(sleep, folder), daemon=True).start()
while sum(name.endswith(".sleeps") for name in os.listdir(folder)) < 2:
    time.sleep(0.05)
print(*world.pids, flush=True)
os.kill(os.getpid(), 9)
"""
BODY = """
import os, time
def sleep(folder):
    open(f"{folder}/{os.getpid()}.sleeps", "w").close()
    time.sleep(100)
"""


def test_ranks_of_a_world_die_with_the_process_that_started_them(tmp_path):
    (tmp_path / "body.py").write_text(BODY)
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        pids = [int(pid) for pid in parent.communicate(timeout=60)[0].split()]
    finally:
        kill_tree(parent.pid)
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    _, alive = psutil.wait_procs(processes, timeout=20)
    for process in alive:
        kill_tree(process.pid)
    assert (len(pids), parent.returncode, alive) == (2, -9, [])
