"""Leak checks: each kind of thing left behind is told and undone."""

import os
import subprocess
import sys
import threading

import torch.distributed as dist

from tools.harness.leaks import ProcessSnapshot


def test_changed_removed_and_added_variables_are_told_and_put_back(monkeypatch):
    monkeypatch.setenv("LEAK_CHANGED", "1")
    monkeypatch.setenv("LEAK_REMOVED", "1")
    before = ProcessSnapshot.now()
    os.environ.update(LEAK_CHANGED="2", LEAK_ADDED="1", PYTEST_ITS_OWN="1")
    del os.environ["LEAK_REMOVED"]
    assert before.leaks_since() == ["environment variables: LEAK_ADDED, LEAK_CHANGED, LEAK_REMOVED"]
    before.put_back()
    assert before.leaks_since() == []
    assert os.environ["LEAK_REMOVED"] == "1"
    assert os.environ.pop("PYTEST_ITS_OWN") == "1"


def test_child_process_is_told_and_killed(monkeypatch):
    before = ProcessSnapshot.now()
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    assert before.leaks_since(allowed_pids=frozenset({child.pid})) == []
    (leak,) = before.leaks_since()
    assert leak.startswith(f"child processes: {child.pid} (")
    before.put_back()
    assert child.wait(timeout=60) == -9


def test_processes_that_a_thread_of_a_child_started_are_seen():
    """The kernel lists children by the thread that started them."""
    grandchild = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    child = (
        "import subprocess, sys, threading\n"
        f"start = lambda: subprocess.Popen([sys.executable, '-c', {grandchild!r}]).wait()\n"
        "threading.Thread(target=start).start()"
    )
    before = ProcessSnapshot.now()
    process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, text=True)
    pids = {process.pid, int(process.stdout.readline())}
    assert ProcessSnapshot.now().children - before.children == pids
    idle = frozenset({process.pid})
    assert ProcessSnapshot.now(idle_pids=idle).children - before.children == idle
    before.put_back()
    process.communicate()
    assert not ProcessSnapshot.now().children & pids


def test_thread_that_goes_on_is_told():
    before = ProcessSnapshot.now()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-over")
    thread.start()
    assert before.leaks_since() == ["threads: left-over"]
    stop.set()
    assert before.leaks_since() == []
    thread.join()


def test_process_group_is_told_and_destroyed(tmp_path):
    before = ProcessSnapshot.now()
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    assert before.leaks_since() == ["a process group"]
    before.put_back()
    assert not dist.is_initialized()
