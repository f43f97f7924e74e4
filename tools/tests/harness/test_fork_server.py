"""Scripts forked from a process that has torch imported behave as those that Python starts."""

import os
import signal
import sys

import psutil
import pytest

from tools.harness.fork_server import ForkServer, fork_server
from tools.harness.scripts import (
    Script,
    is_alive,
    run_command,
    run_script,
    start_ranks,
    wait_for_ranks,
)

LOOK = """
import json, os, sys
print(json.dumps([__name__, sys.argv, sys.path[0], os.getcwd(), os.environ.get("WORD"), "RANK" in os.environ]))
print("to stderr", file=sys.stderr)
"""
ENDINGS = {
    "end": ("", 0),
    "exit code": ("raise SystemExit(3)", 3),
    "error": ("raise KeyError('lost')", 1),
    "interrupt": ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT),
    "killed": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
    "exit handler": ("import atexit; atexit.register(print, 'at the end')", 0),
    "thread": ("import threading; threading.Timer(0.1, print, ['at the end']).start()", 0),
    "worker": (
        "from torch.utils.data import DataLoader\nprint(len(list(DataLoader(range(8), num_workers=2))))",
        0,
    ),
}


def test_a_script_sees_what_it_would_see_if_python_had_started_it(tmp_path):
    script = tmp_path / "look.py"
    script.write_text(LOOK)
    options = {"env": {"WORD": "hello", "PYTHONPATH": "/extra"}, "cwd": tmp_path}
    forked = run_script(script, "a b", "--flag", **options)
    started = run_command([sys.executable, str(script), "a b", "--flag"], **options)
    assert (forked.returncode, forked.stdout, forked.stderr) == (0, started.stdout, started.stderr)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_script_ends_as_if_python_had_started_it(tmp_path, ending):
    body, exit_code = ENDINGS[ending]
    script = tmp_path / "end.py"
    script.write_text(body)
    # Without NumPy, torch warns when it is imported, which only the started script does.
    forked, started = run_script(script), run_command([sys.executable, "-W", "ignore", str(script)])
    assert (forked.returncode, forked.stdout) == (started.returncode, started.stdout)
    assert forked.returncode == exit_code
    assert forked.stderr.splitlines()[-1:] == started.stderr.splitlines()[-1:]


@pytest.mark.parametrize("draw", ["random.random", "numpy.random.random"])
def test_random_numbers_differ_between_scripts(tmp_path, draw):
    module = draw.rpartition(".")[0]
    pytest.importorskip(module, reason="NumPy is seeded where it is installed")
    script = tmp_path / "draw.py"
    script.write_text(f"import {module}\nprint({draw}())")
    first, second = run_script(script), run_script(script)
    assert (first.returncode, second.returncode) == (0, 0)
    assert first.stdout != second.stdout


def test_ranks_meet_and_the_exit_code_is_that_of_the_first_that_failed(tmp_path):
    script = tmp_path / "meet.py"
    script.write_text(
        "import sys\nfrom accel_state import PartialState\nstate = PartialState(cpu=True)\n"
        "print(f'{state.process_index} of {state.num_processes}')\nstate.wait_for_everyone()\n"
        "sys.exit(5 if state.process_index == 2 else 0)"
    )
    done = run_script(script, num_processes=3)
    assert (done.returncode, done.stdout) == (5, "0 of 3\n1 of 3\n2 of 3\n")


def test_ranks_that_wait_for_a_failed_one_are_killed_after_the_grace_period(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.harness.scripts._GRACE_S", 0.2)
    script = tmp_path / "wait.py"
    script.write_text("import os, time\nif os.environ['RANK'] == '0': raise SystemExit(4)\ntime.sleep(60)")
    with start_ranks([script], 2) as ranks:
        assert wait_for_ranks(ranks) == 4
        waiting = ranks[1].process.pid
        assert is_running(waiting)
    assert not is_running(waiting)


def test_an_error_while_ranks_run_tells_what_they_do(tmp_path):
    script = tmp_path / "hang.py"
    script.write_text(
        "import os, time\n"
        "def hang(): time.sleep(60)\n"
        "if os.environ['RANK'] == '0': raise SystemExit('no more')\n"
        "print('begun', flush=True); hang()"
    )
    with pytest.raises(ValueError, match="late") as raised, start_ranks([script], 2) as ranks:
        ranks[1].wait_for_output("begun")
        ranks[0].process.wait(timeout=60)
        raise ValueError("late")
    (note,) = raised.value.__notes__
    ended, hanging = note.split("--- rank 1 ")
    assert "ended with exit code 1" in ended
    assert "no more" in ended
    assert "begun" in hanging
    assert "in hang" in hanging


def is_running(pid):
    return psutil.pid_exists(pid) and is_alive(psutil.Process(pid))


def test_a_script_finds_imported_what_it_is_to_find():
    look = "import sys; print('torch' in sys.modules, 'wave' in sys.modules)"
    for preload in ((), ("wave",), ("wave",)):
        script = Script(["-c", look], preload=preload)
        assert script.process.wait(timeout=60) == 0
        assert script.stdout == f"True {bool(preload)}\n"
        script.close()


@pytest.mark.parametrize("is_forked", [False, True])
def test_scripts_end_with_the_server(is_forked):
    server = ForkServer(origin=fork_server() if is_forked else None)
    with open(os.devnull, "rb+") as nothing:
        process = server.start(
            ("-c", "import time; time.sleep(300)"), environ=os.environ, streams=[nothing] * 3
        )
    running = psutil.Process(process.pid)
    server.close()
    assert psutil.wait_procs([running], timeout=60)[1] == []


def test_after_its_server_was_killed_a_script_counts_as_killed_and_the_next_has_a_new_server():
    script = Script(["-c", "import time; time.sleep(300)"])
    server = fork_server()
    server.process.kill()
    server.process.wait()
    assert script.process.wait(timeout=60) == -signal.SIGKILL
    script.close()
    with pytest.warns(UserWarning, match="The fork server ended with -9"):
        assert fork_server() is not server
