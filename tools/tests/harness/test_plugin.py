"""The pytest plugin, in a pytest of its own."""

import re
import sys

from tools.harness.scripts import run_command
from tools.workspace import ROOT

LEAKING = """
import gc
import os
import signal
import pytest
import torch

from accel_state.partial_state import PartialState
from accel_state.runtime import has_runtime

def test_leaks():
    os.environ["LEFT_BEHIND"] = "1"

def test_is_clean_again():
    assert "LEFT_BEHIND" not in os.environ

def test_handles_a_signal():
    signal.signal(signal.SIGTERM, lambda number, frame: None)

def test_handles_no_signal():
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

@pytest.mark.leaks_environment("MEANT")
def test_means_it():
    os.environ["MEANT"] = "1"

def test_what_was_meant_is_undone():
    assert "MEANT" not in os.environ

def test_patches(monkeypatch):
    monkeypatch.setenv("PATCHED", "1")

def test_builds_state():
    PartialState(cpu=True)

def test_finds_no_state():
    assert not has_runtime()

def test_computes_on_one_thread():
    assert torch.get_num_threads() == 1

def test_collects_garbage():
    assert gc.isenabled()

def rank():
    return PartialState().process_index

def test_world(world):
    assert world(2).run(rank) == [0, 1]
    print("pids", *world(2).pids)
"""


SIDE_BY_SIDE = """
from functools import partial
import pytest

def job(folder, *, name):
    (folder.parent / f"{name}.ran").touch()
    if name == "bad":
        raise ValueError("no good")
    return name

jobs = {name: partial(job, name=name) for name in ("good", "bad", "unwanted")}

@pytest.mark.parametrize("outcome", [jobs["good"]], indirect=True)
@pytest.mark.parametrize("number", [1, 2])
def test_good(outcome, number):
    assert outcome == "good"

@pytest.mark.parametrize("outcome", [jobs["bad"]], indirect=True)
def test_bad(outcome):
    pass

@pytest.mark.parametrize("outcome", [jobs["unwanted"]], indirect=True)
def test_unwanted(outcome):
    pass
"""


def run_pytest(folder, *args):
    command = [sys.executable, "-m", "pytest", "-p", "tools.harness.plugin", "-q"]
    command += [
        "-p",
        "no:cacheprovider",
        "-p",
        "no:randomly",
        "--import-mode=importlib",
        f"--rootdir={folder}",
    ]
    return run_command([*command, str(folder), *args], cwd=ROOT, timeout_s=240)


def test_jobs_of_the_selected_tests_are_run_and_fail_only_those_who_ask_for_them(tmp_path):
    (tmp_path / "test_inner.py").write_text(SIDE_BY_SIDE)
    ran = run_pytest(tmp_path, f"--basetemp={tmp_path / 'base'}", "-k", "good or bad")
    assert "2 passed, 1 deselected, 1 error" in ran.stdout, ran.stdout
    assert "ValueError: no good" in ran.stdout
    assert sorted(file.stem for file in (tmp_path / "base").rglob("*.ran")) == ["bad", "good"]


def test_leaks_fail_their_own_test_and_no_other(tmp_path):
    (tmp_path / "test_inner.py").write_text(LEAKING)
    ran = run_pytest(tmp_path, "-s")
    assert re.search(r"12 passed, (\d+ warnings?, )?2 errors", ran.stdout), ran.stdout
    assert "The test left behind environment variables: LEFT_BEHIND." in ran.stdout
    assert "The test left behind signal handlers: SIGTERM." in ran.stdout
    assert "ERROR" in ran.stdout
    assert "test_inner.py::test_leaks" in ran.stdout
    pids = re.search(r"pids (\d+) (\d+)", ran.stdout).groups()
    assert not [pid for pid in pids if is_worker(pid)]


def is_worker(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return "tools.harness" in file.read()
    except FileNotFoundError:
        return False
