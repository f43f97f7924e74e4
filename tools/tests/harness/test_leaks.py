"""Leak checks: each kind of thing left behind is found and undone."""

import os
import subprocess
import sys
import threading

import torch.distributed as dist

from tools.harness.leaks import ProcessSnapshot


def test_variables_and_a_process_group_are_found_and_put_back(monkeypatch, tmp_path):
    monkeypatch.setenv("LEAK_CHANGED", "1")
    monkeypatch.setenv("LEAK_REMOVED", "1")
    before = ProcessSnapshot.now()
    os.environ.update(LEAK_CHANGED="2", LEAK_ADDED="1", PYTEST_ITS_OWN="1")
    del os.environ["LEAK_REMOVED"]
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'meet'}", rank=0, world_size=1)
    variables = "environment variables: LEAK_ADDED, LEAK_CHANGED, LEAK_REMOVED"
    assert before.leaks_since() == [variables, "a process group"]
    before.put_back()
    assert before.leaks_since() == []
    assert os.environ["LEAK_REMOVED"] == "1"
    assert os.environ.pop("PYTEST_ITS_OWN") == "1"


def test_processes_are_found_also_those_that_a_thread_of_a_child_started():
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
    assert before.leaks_since(allowed_pids=frozenset(pids)) == []
    (leak,) = before.leaks_since()
    assert all(f"{pid} (" in leak for pid in pids)
    before.put_back()
    process.communicate()
    assert not ProcessSnapshot.now().children & pids


def test_a_thread_that_goes_on_is_found():
    before = ProcessSnapshot.now()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="left-over")
    thread.start()
    assert before.leaks_since() == ["threads: left-over"]
    stop.set()
    thread.join()
