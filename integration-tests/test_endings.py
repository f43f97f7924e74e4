"""How training scripts end, through both launchers: the exit code is right, nobody aborts, hangs or is left over."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from accel_state.testing import run_script
from accel_state.testing.scripts import kill_tree

TRAIN = """
import os, sys, time
from pathlib import Path
import torch
from accel import Accelerator

folder, ending = Path(sys.argv[1]), sys.argv[2]
accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=folder)
accelerator.init_trackers("run")
rank = accelerator.process_index
(folder / f"{rank}.pid").write_text(str(os.getpid()))
model = torch.nn.Linear(4, 1)
loader = torch.utils.data.DataLoader(torch.ones(64, 4), batch_size=4)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
for step, batch in enumerate(loader):
    accelerator.backward(model(batch).mean())
    optimizer.step()
    optimizer.zero_grad()
    accelerator.log({"step": step}, step=step)
    if ending == "raise" and step == 3 and rank == accelerator.num_processes - 1:
        raise ValueError("a mistake of mine")
    if ending == "wait" and step == 3:
        (folder / f"{rank}.waits").touch()
        time.sleep(300 if rank else 0)  # the others wait for rank 1 in the next step's collective
if ending == "end":
    accelerator.end_training()
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def pids(folder):
    return [int(file.read_text()) for file in sorted(folder.glob("*.pid"))]


def assert_nobody_is_left(folder):
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids(folder)):
        assert time.monotonic() < deadline, "a rank outlived the launcher"
        time.sleep(0.05)


def logged(folder):
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.jsonl"))


@pytest.mark.parametrize("launcher", ["accel", "torchrun"])
@pytest.mark.parametrize("ending", ["end", "falls off"])
def test_a_script_that_is_done_ends_with_0_and_has_logged_all(script, tmp_path, ending, launcher):
    done = run_script(script, str(tmp_path), ending, num_processes=2, launcher=launcher, timeout_s=120)
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr
    assert "Traceback" not in done.stderr
    assert logged(tmp_path) == 8
    assert_nobody_is_left(tmp_path)


@pytest.mark.parametrize("launcher", ["accel", "torchrun"])
def test_a_rank_that_raises_ends_the_run_with_its_exit_code(script, tmp_path, launcher):
    begun = time.monotonic()
    done = run_script(script, str(tmp_path), "raise", num_processes=2, launcher=launcher, timeout_s=120)
    assert done.returncode == 1
    assert "ValueError: a mistake of mine" in done.stderr
    assert "terminate called" not in done.stderr
    assert time.monotonic() - begun < 60, "the run waited for a collective that nobody joins"
    assert_nobody_is_left(tmp_path)


def command(launcher, script, folder):
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        return [*torchrun, str(script), str(folder), "wait"]
    accel = [str(Path(sys.executable).parent / "accel"), "launch", "--cpu", "--num_processes", "2"]
    return [*accel, str(script), str(folder), "wait"]


@pytest.mark.parametrize(("launcher", "codes"), [("accel", {130}), ("torchrun", {1, 130, -signal.SIGINT})])
def test_an_interrupt_ends_all_ranks_and_the_launcher_says_so(script, tmp_path, launcher, codes):
    """torchrun ends with 1, whatever the signal (`SignalException` is an uncaught exception there)."""
    launched = subprocess.Popen(
        command(launcher, script, tmp_path),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while len(list(tmp_path.glob("*.waits"))) < 2:
            assert time.monotonic() < deadline
            assert launched.poll() is None
            time.sleep(0.05)
        launched.send_signal(signal.SIGINT)
        errors = launched.communicate(timeout=60)[1]
    finally:
        kill_tree(launched.pid)
        launched.communicate()
    assert launched.returncode in codes, errors
    assert "terminate called" not in errors
    assert_nobody_is_left(tmp_path)
