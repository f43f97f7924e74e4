"""`accel launch` over two machines: from one terminal with --hosts, and by hand with --machine_rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from two_machines import ADDRESSES

pytestmark = pytest.mark.engine("ssh")
DIGITS = Path(__file__).parents[1] / "docs" / "examples" / "digits.py"
SUM = """
import os, sys, time
import torch
from accel import Accelerator
accelerator = Accelerator(cpu=True)
rank = accelerator.process_index
total = accelerator.reduce(torch.tensor([float(rank + 1)]), "sum")
print("rank", rank, "of", accelerator.num_processes, "sees", total.item(), flush=True)
accelerator.end_training()
"""
# Each rank tells its pid in a file, then does what its argument says.
ACT = """
import os, sys, time
rank = os.environ["RANK"]
open(f"{sys.argv[1]}/{os.getpid()}", "w").close()
while len(os.listdir(sys.argv[1])) < 4:
    time.sleep(0.05)
if sys.argv[2] == "raise" and rank == "3":
    raise ValueError("told to raise")
time.sleep(600)
"""


@pytest.fixture
def launch(machines, tmp_path):
    def start(body: str, *arguments: str, flags: tuple[str, ...] = (), hosts: str = ",".join(ADDRESSES)):
        script = tmp_path / "train.py"
        script.write_text(body)
        command = [sys.executable, "-m", "accel_launch", "launch", "--cpu", "--hosts", hosts]
        command += ["--ssh_options", machines.ssh_options, *flags, str(script), *arguments]
        return machines.start(0, command, cwd=tmp_path)

    return start


def finish(process: subprocess.Popen[str], timeout_s: float = 180) -> tuple[int, str, str]:
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    return process.returncode, stdout, stderr


def ranks_in(folder: Path, number: int) -> list[psutil.Process]:
    deadline = time.monotonic() + 120
    while len(list(folder.iterdir())) < number and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(path.name) for path in folder.iterdir()]
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def still_running(ranks: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(ranks, timeout=within_s)
    return [rank for rank in alive if rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE]


def test_two_hosts_from_one_terminal(launch):
    code, stdout, stderr = finish(launch(SUM, flags=("--num_processes=4",)))
    assert code == 0
    assert "error" not in stderr.lower()
    assert sorted(stdout.splitlines()) == [
        f"[{ADDRESSES[rank // 2]}] rank {rank} of 4 sees 10.0" for rank in range(4)
    ]


def test_two_hosts_train_the_digits_example(machines, tmp_path):
    command = [sys.executable, "-m", "accel_launch", "launch", "--cpu", "--hosts", ",".join(ADDRESSES)]
    command += ["--ssh_options", machines.ssh_options, str(DIGITS), "--epochs", "1"]
    process = machines.start(0, command, cwd=tmp_path)
    code, stdout, _ = finish(process, timeout_s=300)
    assert code == 0
    assert f"[{ADDRESSES[0]}] " in stdout


def test_the_first_cause_is_found_across_hosts_and_all_end_together(launch, tmp_path):
    pids = tmp_path / "pids"
    pids.mkdir()
    flags = ("--num_processes=4", "--report=report.json")
    process = launch(ACT, str(pids), "raise", flags=flags)
    ranks = ranks_in(pids, 4)
    code, _, stderr = finish(process)
    assert code == 1
    _, _, told = stderr.rpartition("error: ")
    first, died = told.splitlines()[:2]
    assert first.startswith(f"Rank 3 on {ADDRESSES[1]} failed first: it ended with exit code 1: ValueError")
    assert died == "  Ranks 0-2 only died of it."
    assert "\x1e" not in stderr
    assert still_running(ranks, within_s=30) == []
    report = json.loads((tmp_path / "report.json").read_text())
    assert [rank["host"] for rank in report["ranks"]] == [ADDRESSES[0]] * 2 + [ADDRESSES[1]] * 2


@pytest.mark.parametrize(("signum", "exit_code"), [(signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_nothing_is_left_on_any_host(launch, tmp_path, signum, exit_code):
    pids = tmp_path / "pids"
    pids.mkdir()
    process = launch(ACT, str(pids), "wait", flags=("--num_processes=4",))
    ranks = ranks_in(pids, 4)
    process.send_signal(signum)
    assert finish(process)[0] == exit_code
    assert still_running(ranks, within_s=30) == []


def test_a_host_that_cannot_be_reached_is_named_before_anything_starts(launch, tmp_path):
    hosts = f"{ADDRESSES[0]},127.0.0.9"
    code, stdout, stderr = finish(launch("open('started', 'w')", hosts=hosts))
    assert code == 1
    assert stdout == ""
    assert stderr.startswith("error: Nothing was started, since not all hosts can take part (")
    assert "  127.0.0.9: cannot be reached: " in stderr
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_machines_by_hand(machines, tmp_path, backend):
    script = tmp_path / "train.py"
    script.write_text(SUM)
    flags = ["--cpu", "--num_machines=2", "--num_processes=2", f"--main_process_ip={ADDRESSES[0]}"]
    flags += ["--main_process_port=29811", f"--rdzv_backend={backend}"]
    command = [sys.executable, "-m", "accel_launch", "launch", *flags]
    started = [machines.start(rank, [*command, f"--machine_rank={rank}", str(script)]) for rank in (0, 1)]
    told = ""
    for process in started:
        code, stdout, stderr = finish(process)
        assert code == 0, stderr
        told += stdout
    assert sorted(told.splitlines()) == ["rank 0 of 2 sees 3.0", "rank 1 of 2 sees 3.0"]
    assert os.environ.get("RANK") is None
