"""Ranks of a training that are killed come back from the standby, and the training is as if none had been killed."""

import json
import shlex
import sys

import pytest

from tools.bench.restarts import LAUNCHERS, train
from tools.harness.scripts import run_command

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives forks of a standby to the launcher"
)

TRAINING = """
import json, os, signal, sys, time

import torch
from accel import Accelerator

accelerator = Accelerator()
model = torch.nn.Linear(4, 4)
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
model(torch.ones(2, 4, device=accelerator.device)).sum().backward()
optimizer.step()
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
is_warm = b"standby_program" in open("/proc/self/cmdline", "rb").read()
total = accelerator.reduce(torch.ones(1, device=accelerator.device)).item()
if accelerator.is_main_process:
    print(json.dumps([attempt, is_warm, accelerator.device.type, total]), flush=True)
accelerator.wait_for_everyone()
if attempt < 2 and accelerator.is_main_process:
    os.kill(os.getpid(), signal.SIGKILL)
if attempt < 2:
    time.sleep(600)
"""


def restarted(tmp_path, *flags):
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    launch = [sys.executable, "-m", "accel_launch", "launch", "--max_restarts", "3", *flags, str(script)]
    done = run_command(launch, cwd=tmp_path, timeout_s=600)
    assert done.returncode == 0, done.stderr
    assert "without the standby" not in done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


@pytest.mark.engine("long")
def test_ranks_of_a_training_come_back_from_the_standby(tmp_path):
    assert restarted(tmp_path, "--cpu", "--num_processes", "2") == [
        [0, False, "cpu", 2.0],
        [1, True, "cpu", 2.0],
        [2, True, "cpu", 2.0],
    ]


@pytest.mark.gpu
def test_a_rank_from_the_standby_uses_the_gpu_twice(tmp_path):
    """The standby has touched no device, or CUDA would refuse to start in its forks."""
    assert restarted(tmp_path, "--num_processes", "1") == [
        [0, False, "cuda", 1.0],
        [1, True, "cuda", 1.0],
        [2, True, "cuda", 1.0],
    ]


@pytest.mark.engine("long")
def test_killed_ranks_change_no_loss_and_nothing_is_left_behind():
    """Six kills; `python -m tools.bench.restarts --kills 200 --gap 3` is the long run."""
    undisturbed = train(shlex.split(LAUNCHERS["accel"]), seconds=10)
    killed = train(shlex.split(LAUNCHERS["accel"]), seconds=0, gap_s=2, num_kills=6)
    assert len(killed.recoveries_s) == 6
    assert "without the standby" not in killed.output
    assert max(step.attempt for step in killed.steps) == 6
    both = undisturbed.losses.keys() & killed.losses.keys()
    assert len(both) > 20
    assert {step: killed.losses[step] for step in both} == {step: undisturbed.losses[step] for step in both}
    assert all(len(losses) == 1 for losses in killed.losses.values())
    assert killed.left == ()
    assert killed.num_descriptors[0] == killed.num_descriptors[1]
    assert killed.memory_mib[1] < killed.memory_mib[0] + 20
