"""One rank of a world: that it ends when its parent does, even in the middle of a body."""

import subprocess
import sys
import time

import psutil
import pytest

from tools.harness.scripts import kill_tree
from tools.workspace import ROOT

PARENT = """
import os, sys, threading, time
folder, num_in_body = sys.argv[1:]
sys.path.insert(0, folder)
from body import sleep
from tools.harness.world import World
world = World(2)
threading.Thread(target=world.run, args=(sleep, folder), daemon=True).start()
while len(world.pids) < 2 or sum(name.endswith(".sleeps") for name in os.listdir(folder)) < int(num_in_body):
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


@pytest.mark.parametrize("num_in_body", [0, 2], ids=["while they start", "in the middle of a body"])
def test_workers_die_with_their_parent(tmp_path, num_in_body):
    (tmp_path / "body.py").write_text(BODY)
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(num_in_body)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        pids = [int(pid) for pid in parent.communicate(timeout=60)[0].split()]
    finally:
        kill_tree(parent.pid)
    assert parent.returncode == -9
    assert len(pids) == 2
    deadline = time.monotonic() + 20
    while (alive := [pid for pid in pids if is_running(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in alive:
        kill_tree(pid)
    assert alive == []


def is_running(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
