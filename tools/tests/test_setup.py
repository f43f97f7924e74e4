import os
import signal
import subprocess
import sys

import pytest

from tools.setup.environment import inputs_of, uv_variables_of
from tools.setup.running import environment_with, run
from tools.setup.wheels import pinned
from tools.workspace import ROOT

SETTINGS = """\
:env:.find-links='/wheels /more'
global.cert='/ca.crt'
global.extra-index-url='\\nfile:///a\\nfile:///b'
global.find-links='/of-all'
global.index-url='https://mirror/simple'
global.timeout='60'
"""


@pytest.mark.parametrize(
    ("path", "old", "new"),
    [
        ("constraints.txt", "2.13.0", "2.13.1"),
        ("packages/accel-ops/pyproject.toml", "numpy>=1.26", "numpy>=2.0"),
        ("packages/accel-data/src/accel_data/__init__.py", "0.1.0", "0.1.1"),
        ("pyproject.toml", '["rich"]', '["rich", "accelerate"]'),
    ],
)
def test_an_environment_is_made_again_when_what_is_wanted_changes(checkout, path, old, new):
    constraints = checkout.write("constraints.txt", "torch==2.13.0\n")
    before = inputs_of(constraints, root=checkout.root)
    checkout.write("packages/accel-ops/src/accel_ops/new.py", "")
    assert inputs_of(constraints, root=checkout.root) == before
    checkout.replace(path, old, new)
    assert inputs_of(constraints, root=checkout.root) != before


def test_uv_installs_from_where_pip_does():
    assert uv_variables_of(SETTINGS) == {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/wheels,/more",
        "SSL_CERT_FILE": "/ca.crt",
        "UV_HTTP_TIMEOUT": "60",
    }


def test_every_package_is_pinned_to_its_wheel_and_torch_to_the_release_asked_for(tmp_path):
    wheel = tmp_path / "accel_ops-0.2.0-py3-none-any.whl"
    lines = pinned([wheel], torch="2.9", floors=["numpy==1.26"]).read_text().splitlines()
    assert lines[-3:] == ["torch==2.9.*", f"accel-ops @ {wheel.as_uri()}", "numpy==1.26"]
    assert [line for line in lines if line.startswith("torch==")] == ["torch==2.9.*"]


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


CAREFUL = """
import signal, sys, time
from pathlib import Path
def take_down(*_):
    time.sleep(0.5)
    Path("taken-down").touch()
    sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, take_down)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("send", [os.killpg, os.kill], ids=["Ctrl-C", "SIGTERM"])
def test_a_child_has_the_time_to_take_down_what_it_started(tmp_path, send):
    code = (
        "import sys; from pathlib import Path; from tools.setup.running import *\n"
        f"end_on_sigterm(); run([sys.executable, '-c', {CAREFUL!r}], cwd=Path({str(tmp_path)!r}))"
    )
    command, pipe = [sys.executable, "-c", code], subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, text=True, start_new_session=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        send(parent.pid, signal.SIGINT if send is os.killpg else signal.SIGTERM)
        parent.wait(30)
    assert (tmp_path / "taken-down").exists()
