"""One rank of a world: that it ends when its parent does, even in the middle of a body."""

import subprocess
import sys
import time

import psutil
import pytest

from accel_state.testing.scripts import kill_tree

PARENT = """
import os, sys, threading, time
sys.path.insert(0, sys.argv[1])
from body import sleep
from accel_state.testing.world import World
world = World(2)
threading.Thread(target=world.run, args=(sleep,), daemon=True).start()
while len(world.pids) < 2: time.sleep(0.05)
time.sleep(float(sys.argv[2]))
print(*world.pids, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("after_s", [0, 3])
def test_workers_die_with_their_parent(tmp_path, after_s):
    (tmp_path / "body.py").write_text("import time\ndef sleep():\n    time.sleep(100)\n")
    command = [sys.executable, "-c", PARENT, str(tmp_path), str(after_s)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
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
