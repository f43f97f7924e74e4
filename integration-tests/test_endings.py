"""How training scripts end, by themselves and through both launchers: the exit code is right, none aborts or hangs.

A script that ends well does so in the same way under `accel launch` and without a launcher: rank 0 keeps the store
that the ranks meet at. Under torchrun its agent does.
"""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import preloaded
import psutil
import pytest

from tools.harness.fork_server import COMPLETE_EXIT
from tools.harness.scripts import kill_tree, run_script, start_ranks, torchrun

pytestmark = pytest.mark.engine("long")
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


def written(folder):
    script = folder / "train.py"
    script.write_text(TRAIN)
    return script


def pids(folder):
    return [int(file.read_text()) for file in sorted(folder.glob("*.pid"))]


def assert_nobody_is_left(folder):
    deadline = time.monotonic() + 60
    while any(psutil.pid_exists(pid) for pid in pids(folder)):
        assert time.monotonic() < deadline, "a rank outlived the launcher"
        time.sleep(0.05)


def logged(folder):
    return sum(len(file.read_text().splitlines()) for file in folder.rglob("*.jsonl"))


def ended(folder, *, ending):
    # The group's own timeout is half an hour: a run that waits for a collective that nobody joins ends here.
    words = (written(folder), str(folder), ending)
    done = run_script(*words, num_processes=2, env=COMPLETE_EXIT, timeout_s=240, preload=preloaded.ACCEL)
    assert_nobody_is_left(folder)
    return done, logged(folder)


def ended_by_torchrun(folder):
    words = (*torchrun(2), str(written(folder)), str(folder), "falls off")
    done = run_script(*words, timeout_s=240)
    assert_nobody_is_left(folder)
    return done, logged(folder)


@pytest.mark.parametrize(
    "outcome",
    [partial(ended, ending="end"), partial(ended, ending="falls off"), ended_by_torchrun],
    ids=["end-fork", "falls off-fork", "falls off-torchrun"],
    indirect=True,
)
def test_a_script_that_is_done_ends_with_0_and_has_logged_all(outcome):
    done, num_logged = outcome
    assert done.returncode == 0, done.stderr
    assert "terminate called" not in done.stderr
    assert "Traceback" not in done.stderr
    assert num_logged == 8


def one_raises(folder):
    words = [written(folder), folder, "raise"]
    with start_ranks(words, 2, env=COMPLETE_EXIT, preload=preloaded.ACCEL) as ranks:
        return [(rank.process.wait(timeout=120), rank.stderr) for rank in ranks]


@pytest.mark.parametrize("outcome", [one_raises], indirect=True)
def test_a_rank_that_waits_for_one_that_raised_fails_by_itself(outcome):
    """What `accel launch` makes of it is tested with the launcher, in its test of crashes."""
    (waiting_code, waiting_errors), (code, errors) = outcome
    assert (waiting_code, code) == (1, 1)
    assert "RuntimeError" in waiting_errors
    assert "ValueError: a mistake of mine" in errors
    assert "terminate called" not in waiting_errors + errors


def interrupt_when_all_wait(launcher, folder):
    deadline = time.monotonic() + 240
    while len(list(folder.glob("*.waits"))) < 2:
        assert time.monotonic() < deadline
        assert launcher.poll() is None
        time.sleep(0.05)
    launcher.send_signal(signal.SIGINT)


def accel_interrupted(folder):
    accel = [str(Path(sys.executable).parent / "accel"), "launch", "--cpu", "--num_processes", "2"]
    launched = subprocess.Popen(
        [*accel, str(written(folder)), str(folder), "wait"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        interrupt_when_all_wait(launched, folder)
        errors = launched.communicate(timeout=120)[1]
    finally:
        kill_tree(launched.pid)
        launched.communicate()
    assert_nobody_is_left(folder)
    return launched.returncode, errors


@pytest.mark.parametrize("outcome", [accel_interrupted], indirect=True)
def test_an_interrupt_ends_all_ranks_and_the_launcher_reports_it(outcome):
    exit_code, errors = outcome
    assert exit_code == 130, errors
    assert "terminate called" not in errors
