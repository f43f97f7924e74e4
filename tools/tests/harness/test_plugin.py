"""The pytest plugin, in its own pytest."""

import re
import sys

import psutil
import pytest

from tools.harness.scripts import run_command
from tools.workspace import ROOT

LEAKING = """
import os
import signal
import subprocess
import sys
import threading
import pytest
import torch
import torch.distributed as dist

from accel_state.partial_state import PartialState
from accel_state.runtime import has_runtime

def test_leaks():
    os.environ.update(LEFT_BEHIND="1", PATH="/", PYTEST_ITS_OWN="1")
    del os.environ["HOME"]

def test_is_clean_again():
    assert "LEFT_BEHIND" not in os.environ
    assert os.environ["PATH"] != "/"
    assert os.environ["HOME"]

def test_handles_a_signal():
    signal.signal(signal.SIGTERM, lambda number, frame: None)

def test_handles_no_signal():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

@pytest.mark.leaks_environment("MEANT")
def test_means_it():
    os.environ["MEANT"] = "1"

def test_what_was_meant_is_undone():
    assert "MEANT" not in os.environ

def test_builds_state():
    PartialState(cpu=True)

def test_finds_no_state():
    assert not has_runtime()

def test_computes_on_one_thread():
    assert torch.get_num_threads() == 1

def test_changes_torch(tmp_path):
    torch.set_default_dtype(torch.float64)
    torch.rand(1)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)

def test_has_torch_as_it_was():
    assert torch.rand(1).dtype == torch.float32
    assert torch.initial_seed() == 0
    assert not dist.is_initialized()

GRANDCHILD = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
STARTS_IT = f"threading.Thread(target=subprocess.run, args=([sys.executable, '-c', {GRANDCHILD!r}],)).start()"

def test_starts_a_process_whose_thread_starts_another():  # the kernel lists children by the thread that started them
    child = [sys.executable, "-c", f"import subprocess, sys, threading; {STARTS_IT}"]
    child = subprocess.Popen(child, stdout=subprocess.PIPE, text=True)
    print("left", child.pid, child.stdout.readline())
    threading.Thread(target=child.wait, name="left-over").start()

def rank():
    return PartialState().process_index

def test_world(world):
    assert world(2).run(rank) == [0, 1]
    print("pids", *world(2).pids)
"""


JOBS = """
from functools import partial
import pytest

def job(folder, *, name):
    (folder / f"{name}.ran").touch()
    if name == "bad":
        raise ValueError("no good")
    return name

jobs = {name: partial(job, name=name) for name in ("good", "bad", "unwanted")}

@pytest.mark.parametrize("outcome", [jobs["good"]], indirect=True)
@pytest.mark.parametrize("number", [1, 2])
def test_good(outcome, number):
    assert outcome == "good"

@pytest.mark.parametrize("outcome", [jobs["bad"]], indirect=True)
@pytest.mark.parametrize("number", [1, 2])
def test_bad(outcome, number):
    pass

@pytest.mark.parametrize("outcome", [jobs["unwanted"]], indirect=True)
def test_unwanted(outcome):
    pass
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The run of both files, without the job that nothing asks for, and its folder of temporary files."""
    folder = tmp_path_factory.mktemp("inner")
    (folder / "test_leaking.py").write_text(LEAKING)
    (folder / "test_jobs.py").write_text(JOBS)
    plugins = ("-p", "tools.harness.plugin", "-p", "no:cacheprovider")
    options = ("-qs", "--import-mode=importlib", "-k", "not unwanted", f"--basetemp={folder / 'base'}")
    command = [sys.executable, "-m", "pytest", *plugins, *options, f"--rootdir={folder}", str(folder)]
    without_libraries = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = run_command(command, env=without_libraries, cwd=ROOT, timeout_s=240)
    assert re.search(r"15 passed, 1 deselected, (\d+ warnings?, )?6 errors", done.stdout), done.stdout
    return done.stdout, folder / "base"


def test_a_job_is_run_once_if_a_test_requests_it_and_fails_only_those_tests(ran):
    printed, folder = ran
    assert "ValueError: no good" in printed
    assert sorted(file.stem for file in folder.rglob("*.ran")) == ["bad", "good"]


def test_leaks_fail_their_own_test_and_no_other(ran):
    printed, _ = ran
    assert "The test left behind environment variables: HOME, LEFT_BEHIND, PATH." in printed
    assert "The test left behind settings: the handler of SIGTERM." in printed
    assert "The test left behind settings: the process group, the default dtype." in printed
    left = re.search(r"left (\d+) (\d+)", printed).groups()
    assert all(f"{pid} (" in printed for pid in left)
    assert "threads: left-over." in printed
    pids = (*left, *re.search(r"pids (\d+) (\d+)", printed).groups())
    assert not [pid for pid in pids if psutil.pid_exists(int(pid))]
