import os
import signal
import subprocess
import sys

import pytest

from tools.running import environment_with, run
from tools.workspace import ROOT


def test_what_takes_too_long_is_ended_and_that_is_said(capsys):
    assert run([sys.executable, "-c", "import time; time.sleep(60)"], limit_s=0.5) == 124
    assert "was ended: it took longer than 0.5 s" in capsys.readouterr().err


def test_a_child_sees_no_python_path_and_one_thread_and_keeps_compiled_sources(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "somewhere")
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environ = environment_with({"EXTRA": "1"})
    assert {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE"}.isdisjoint(environ)
    assert (environ["OMP_NUM_THREADS"], environ["EXTRA"]) == ("1", "1")


CAREFUL = """
import signal, sys, time
from pathlib import Path
def take_down(*_):
    time.sleep(0.5)
    Path(sys.argv[1]).touch()
    sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, take_down)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["Ctrl-C", "SIGTERM"])
def test_a_child_has_the_time_to_take_down_what_it_started(tmp_path, send):
    taken_down = tmp_path / "taken-down"
    child = [sys.executable, "-c", CAREFUL, str(taken_down)]
    code = f"from tools.running import *; end_on_sigterm(); run({child!r})"
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, text=True, start_new_session=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        send(parent.pid, signal.SIGINT if send is os.killpg else signal.SIGTERM)
        parent.wait(30)
    assert taken_down.exists()
