"""How training scripts end, through both launchers: the exit code is right, nobody aborts, hangs or is left over."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
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


LAUNCHERS = ["accel", "torchrun"]


def written(folder):
    script = folder / "train.py"
    script.write_text(TRAIN)
    return script


def pids(folder):
    return [int(file.read_text()) for file in sorted(folder.glob("*.pid"))]


def assert_nobody_is_left(folder):
    deadline = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in pids(folder)):
        assert time.monotonic() < deadline, "a rank outlived the launcher"
        time.sleep(0.05)


def logged(folder):
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.jsonl"))


def ended(folder, *, ending, launcher):
    script = written(folder)
    begun = time.monotonic()
    done = run_script(script, str(folder), ending, num_processes=2, launcher=launcher, timeout_s=120)
    took_s = time.monotonic() - begun
    assert_nobody_is_left(folder)
    return done, took_s, logged(folder)


@pytest.mark.parametrize(
    "outcome",
    [
        partial(ended, ending=ending, launcher=launcher)
        for ending in ("end", "falls off")
        for launcher in LAUNCHERS
    ],
    ids=[f"{ending}-{launcher}" for ending in ("end", "falls off") for launcher in LAUNCHERS],
    indirect=True,
)
def test_a_script_that_is_done_ends_with_0_and_has_logged_all(outcome):
    done, _, num_logged = outcome
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr
    assert "Traceback" not in done.stderr
    assert num_logged == 8


@pytest.mark.parametrize(
    "outcome",
    [partial(ended, ending="raise", launcher=launcher) for launcher in LAUNCHERS],
    ids=LAUNCHERS,
    indirect=True,
)
def test_a_rank_that_raises_ends_the_run_with_its_exit_code(outcome):
    done, took_s, _ = outcome
    assert done.returncode == 1
    assert "ValueError: a mistake of mine" in done.stderr
    assert "terminate called" not in done.stderr
    assert took_s < 60, "the run waited for a collective that nobody joins"


def command(launcher, folder):
    script = written(folder)
    if launcher == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
        return [*torchrun, str(script), str(folder), "wait"]
    accel = [str(Path(sys.executable).parent / "accel"), "launch", "--cpu", "--num_processes", "2"]
    return [*accel, str(script), str(folder), "wait"]


def interrupted(folder, *, launcher):
    launched = subprocess.Popen(
        command(launcher, folder),
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while len(list(folder.glob("*.waits"))) < 2:
            assert time.monotonic() < deadline
            assert launched.poll() is None
            time.sleep(0.05)
        launched.send_signal(signal.SIGINT)
        errors = launched.communicate(timeout=60)[1]
    finally:
        kill_tree(launched.pid)
        launched.communicate()
    assert_nobody_is_left(folder)
    return launched.returncode, errors


@pytest.mark.parametrize(
    ("outcome", "codes"),
    [
        (partial(interrupted, launcher="accel"), {130}),
        (partial(interrupted, launcher="torchrun"), {1, 130, -signal.SIGINT}),
    ],
    ids=LAUNCHERS,
    indirect=["outcome"],
)
def test_an_interrupt_ends_all_ranks_and_the_launcher_says_so(outcome, codes):
    """torchrun ends with 1, whatever the signal (`SignalException` is an uncaught exception there)."""
    exit_code, errors = outcome
    assert exit_code in codes, errors
    assert "terminate called" not in errors
