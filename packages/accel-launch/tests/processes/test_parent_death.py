from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accel_launch.processes.parent_death import tied_to_parent

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")

# Starts a child that is tied to it, tells its pid, and hangs.
PARENT = """
import os, subprocess, sys, time
from accel_launch.processes.parent_death import tied_to_parent
command = tied_to_parent([sys.executable, "-c", "import time; time.sleep(60)"], parent_pid=os.getpid())
print(subprocess.Popen(command).pid, flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_the_child_ends_when_its_parent_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        child = int(parent.stdout.readline())
        deadline = time.monotonic() + 10
        while "time.sleep" not in Path(f"/proc/{child}/cmdline").read_text() and time.monotonic() < deadline:
            time.sleep(0.02)  # until the child has become its program
        assert is_running(child)
        parent.kill()
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not is_running(child)


def test_the_program_sees_its_own_arguments_and_gives_its_exit_code():
    code = "import sys; sys.exit(sys.argv[1:] != ['a b', '--'])"
    command = tied_to_parent([sys.executable, "-c", code, "a b", "--"], parent_pid=os.getpid())
    assert subprocess.run(command, timeout=60, check=False).returncode == 0


def test_nothing_is_started_for_a_parent_that_is_gone(tmp_path):
    command = tied_to_parent(["touch", str(tmp_path / "started")], parent_pid=2**22)
    assert subprocess.run(command, timeout=60, check=False).returncode == 137
    assert not (tmp_path / "started").exists()


def test_a_program_that_is_missing_is_named(tmp_path, capfd):
    text = tmp_path / "no-program"
    text.write_text("")
    for program, code in ((str(tmp_path / "missing"), 127), (str(text), 126)):
        command = tied_to_parent([program], parent_pid=os.getpid())
        assert subprocess.run(command, timeout=60, check=False).returncode == code
        assert f"error: Cannot run `{program}`: " in capfd.readouterr().err


def test_elsewhere_the_command_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert tied_to_parent(["ls", "-l"], parent_pid=1) == ("ls", "-l")
