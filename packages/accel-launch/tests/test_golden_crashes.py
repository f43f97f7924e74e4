"""Twelve ways to crash, through the real command, and the last thing on the screen for each."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENDED = "error: The script ended with exit code 1"
HOST = socket.gethostname()
PRELUDE = """
import os, signal, sys, time
rank = int(os.environ.get("RANK", 0))
"""


@pytest.fixture
def crash(tmp_path: Path, no_user_config):
    """Run a script in some processes; return the exit code, the end of stderr from our report on, and the JSON."""

    def run(body: str, num_processes: int, *flags: str, prelude: str = PRELUDE, preexec_fn=None):
        (tmp_path / "train.py").write_text(prelude + body)
        command = [sys.executable, "-m", "accel_launch", "launch", "--cpu", "--report", "report.json"]
        finished = subprocess.run(
            [*command, f"--num_processes={num_processes}", *flags, "train.py"],
            cwd=tmp_path,
            env=os.environ | no_user_config,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            preexec_fn=preexec_fn,
        )
        _, marker, told = finished.stderr.rpartition("error: ")
        told = told.replace(str(tmp_path), "").replace(HOST, "HOST")
        return finished.returncode, marker + told, json.loads((tmp_path / "report.json").read_text())

    return run


ONE = [
    (
        "\ndef step():\n    raise ValueError('told to raise')\nstep()",
        1,
        "error: The script ended with exit code 1: ValueError: told to raise (/train.py:6 in step).\n",
    ),
    ("sys.exit(3)", 3, "error: The script ended with exit code 3.\n"),
    ("sys.exit('no data')", 1, "error: The script ended with exit code 1.\n"),
    ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "error: The script was killed by SIGSEGV.\n"),
    ("os.abort()", 134, "error: The script was killed by SIGABRT.\n"),
    (
        "import not_there",
        1,
        f"{ENDED}: ModuleNotFoundError: No module named 'not_there' (/train.py:4).\n",
    ),
    (
        "def step(:",
        1,
        "error: The script ended with exit code 1: SyntaxError: invalid syntax (/train.py:4).\n",
    ),
]


@pytest.mark.parametrize(("body", "exit_code", "told"), ONE)
def test_one_process(crash, body, exit_code, told):
    assert crash(body, 1)[:2] == (exit_code, told)


def test_a_rank_raises_while_the_others_wait(crash):
    body = "\nif rank == 1:\n    print('epoch 7', flush=True)\n    raise ValueError('mine')\ntime.sleep(60)"
    code, told, report = crash(body, 4)
    assert code == 1
    assert told.splitlines() == [
        "error: Rank 1 on HOST failed first: it ended with exit code 1: ValueError: mine (/train.py:7).",
        "  Ranks 0, 2-3 only died of it.",
        "  The last lines of rank 1:",
        "    | epoch 7",
        "    | Traceback (most recent call last):",
        '    |   File "/train.py", line 7, in <module>',
        "    |     raise ValueError('mine')",
        "    | ValueError: mine",
    ]
    assert report["first_failure"]["rank"] == 1
    assert (report["first_failure"]["host"], report["first_failure"]["exception"]["line"]) == (HOST, 7)
    assert [rank["outcome"] for rank in report["ranks"]] == [
        "died of it",
        "failed first",
        "died of it",
        "died of it",
    ]


def test_a_rank_is_killed_without_a_word(crash):
    body = "\nif rank == 0:\n    os.kill(os.getpid(), signal.SIGKILL)\ntime.sleep(60)"
    code, told, report = crash(body, 2)
    assert code == 137
    assert (
        told == "error: Rank 0 on HOST failed first: it was killed by SIGKILL.\n  Rank 1 only died of it.\n"
    )
    assert (report["first_failure"]["signal"], report["first_failure"]["exit_code"]) == ("SIGKILL", None)


@pytest.fixture
def in_little_memory():
    """Put the process that calls it into a separate control group, with 150 MB."""
    root = Path("/sys/fs/cgroup")
    is_v1 = (root / "memory").is_dir()
    group = (root / "memory" if is_v1 else root) / f"accel-test-{os.getpid()}"
    limit = group / ("memory.limit_in_bytes" if is_v1 else "memory.max")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"this machine lets nobody make a control group: {error.strerror}")
    try:
        if not limit.exists():
            pytest.skip("this machine has no control groups for memory")
        limit.write_text(str(150 * 10**6))
        yield lambda: (group / "cgroup.procs").write_text(str(os.getpid()))
    finally:
        deadline = time.monotonic() + 5
        while (group / "cgroup.procs").exists() and (group / "cgroup.procs").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        group.rmdir()


def test_a_rank_is_killed_for_want_of_memory(crash, in_little_memory):
    body = "\nif rank == 1:\n    hoard = [b'x' * 2**22 for _ in range(200)]\ntime.sleep(20)"
    code, told, _ = crash(body, 2, preexec_fn=in_little_memory)
    assert code == 137
    assert told == (
        "error: Rank 1 on HOST failed first: it was killed by the out-of-memory killer.\n"
        "  Rank 0 only died of it.\n"
    )


def test_a_rank_dies_while_another_will_not_end(crash):
    body = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"ready{rank}", "w").close()
while not os.path.exists("ready1"):
    time.sleep(0.01)
if rank == 0:
    sys.exit(4)
time.sleep(60)
"""
    code, told, report = crash(body, 2, "--grace_period_s=0.3")
    assert code == 4
    assert told == (
        "error: Rank 0 on HOST failed first: it ended with exit code 4.\n  Rank 1 only died of it.\n"
    )
    assert report["ranks"][1]["signal"] == "SIGKILL"


def test_the_rank_that_lost_its_peer_is_quicker_to_end_than_the_cause(crash):
    body = """
import atexit
if rank == 0:
    while not os.path.exists("closed"):
        time.sleep(0.01)
    raise RuntimeError("[pair.cc:547] Connection closed by peer [127.0.0.1]:4711")
def slow_end():
    open("closed", "w").close()
    time.sleep(60)
atexit.register(slow_end)
raise FloatingPointError("loss is nan")
"""
    code, told, _ = crash(body, 2)
    assert code == 1
    assert told.splitlines()[:2] == [
        "error: Rank 1 on HOST failed first: it was failing: FloatingPointError: loss is nan (/train.py:14).",
        "  Rank 0 only died of it.",
    ]


def test_two_ranks_fail_of_themselves(crash):
    body = """
if rank == 0:
    while not os.path.exists("ready"):
        time.sleep(0.01)
    raise KeyError("first")
def fail(*_):
    raise OSError("second")
signal.signal(signal.SIGTERM, fail)
open("ready", "w").close()
time.sleep(60)
"""
    told = crash(body, 2, "--grace_period_s=5")[1].splitlines()
    assert told[:2] == [
        "error: Rank 0 on HOST failed first: it ended with exit code 1: KeyError: 'first' (/train.py:8).",
        "  Rank 1 ended with exit code 1: OSError: second (/train.py:10 in fail), too.",
    ]


def test_a_collective_fails_because_a_rank_has_gone(crash):
    """With real collectives: rank 0 waits for rank 1, which raises."""
    body = """
from datetime import timedelta
import torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=timedelta(seconds=30))
dist.barrier()
if rank == 1:
    raise FloatingPointError("loss is nan")
dist.all_reduce(torch.ones(1))
time.sleep(30)
"""
    code, told, report = crash(body, 2)
    assert code == 1
    assert told.startswith(
        "error: Rank 1 on HOST failed first: it ended with exit code 1: "
        "FloatingPointError: loss is nan (/train.py:10).\n  Rank 0 only died of it.\n"
    )
    assert report["exit_code"] == 1


def test_the_program_does_not_exist(tmp_path, no_user_config):
    finished = subprocess.run(
        [sys.executable, "-m", "accel_launch", "launch", "--cpu", "--no_python", "no-such-program"],
        env=os.environ | no_user_config,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert finished.returncode == 127
    assert finished.stderr.splitlines() == [
        "error: Cannot run `no-such-program`: No such file or directory.",
        "error: The script ended with exit code 127.",
    ]


def test_a_run_that_succeeds_prints_nothing_and_reports_so(crash):
    code, told, report = crash("print('fine')", 2)
    assert (code, told, report["outcome"], report["first_failure"]) == (0, "", "succeeded", None)


def test_no_page_of_launcher_stack(crash):
    _, told, _ = crash("raise SystemExit(5)", 4)
    assert not re.search(r"accel_launch|torch", told)
    assert len(told.splitlines()) <= 3


LOST = '"[pair.cc:547] Connection closed by peer [127.0.0.1]:4711"'


def test_a_rank_that_ended_without_an_error_is_named(crash):
    body = f"""
if rank == 1:
    os.symlink("/proc/" + str(os.getpid()), "process")
    sys.exit(0)
while not os.path.islink("process") or os.path.exists("process"):  # until the launcher has waited for it
    time.sleep(0.01)
raise RuntimeError({LOST})
"""
    code, told, report = crash(body, 3)
    assert code == 1
    # Ranks 0 and 2 fail at once.
    assert re.match(r"error: Rank 1 on HOST left first: its script ended while rank [02] waited\.\n", told)
    assert [rank["outcome"] == "finished" for rank in report["ranks"]] == [False, True, False]


def test_a_rank_that_was_requested_to_end_while_it_ended_has_failed_with_its_code(crash):
    body = f"""
import atexit
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def slow_end():
    open("ending", "w").close()
    while not os.path.exists("lost"):
        time.sleep(0.01)
    time.sleep(0.2)
if rank == 1:
    atexit.register(slow_end)
    sys.exit(5)
while not os.path.exists("ending"):
    time.sleep(0.01)
atexit.register(lambda: open("lost", "w").close())
raise RuntimeError({LOST})
"""
    code, told, _ = crash(body, 2)
    assert code == 5
    assert told.splitlines() == [
        "error: Rank 1 on HOST failed first: it ended with exit code 5.",
        "  Rank 0 only died of it.",
    ]


def test_an_unprintable_character_before_a_traceback_hides_nothing(crash):
    body = "sys.stderr.write('\\x00\\x00')\nraise ValueError('after a NUL')"
    assert "ValueError: after a NUL (/train.py:5)" in crash(body, 1)[1]
