import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tools.setup.running import environment_with, run

ROOT = Path(__file__).resolve().parents[3]


def test_the_exit_code_is_handed_back_and_the_command_is_shown(tmp_path, capsys):
    assert run([sys.executable, "-c", "raise SystemExit(7)"], cwd=tmp_path) == 7
    assert "SystemExit(7)" in capsys.readouterr().err


def test_what_takes_too_long_is_ended_and_that_is_said(tmp_path, capsys):
    code = "import time; print('begun', flush=True); time.sleep(60)"
    assert run([sys.executable, "-c", code], cwd=tmp_path, limit_s=0.5) == 124
    assert "was ended: it took longer than 0.5 s" in capsys.readouterr().err


def test_a_child_sees_no_python_path_and_one_thread_and_keeps_compiled_sources(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environ = environment_with({"EXTRA": "1"})
    assert {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}.isdisjoint(environ)
    assert (environ["OMP_NUM_THREADS"], environ["EXTRA"]) == ("1", "1")


@pytest.mark.skipif(os.name == "nt", reason="SIGTERM is of POSIX")
def test_what_runs_in_the_foreground_ends_with_us(tmp_path):
    child = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    code = (
        "import sys; from pathlib import Path; from tools.setup.running import *\n"
        f"end_on_sigterm(); run([sys.executable, '-c', {child!r}], cwd=Path('.'))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.terminate()
        assert parent.wait(30) == 128 + signal.SIGTERM
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


CAREFUL = """
import signal, sys, time
from pathlib import Path

def take_down(*_):
    for _ in range(50):
        time.sleep(0.02)
    Path("taken-down").touch()
    sys.exit(0)

signal.signal(signal.SIGINT, take_down)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is of POSIX")
def test_ctrl_c_leaves_a_child_the_time_to_take_down_what_it_started(tmp_path):
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); from pathlib import Path; from tools.setup.running import *\n"
        f"run([sys.executable, '-c', {CAREFUL!r}], cwd=Path('.'))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        os.killpg(parent.pid, signal.SIGINT)
        parent.wait(30)
    assert (tmp_path / "taken-down").exists()
