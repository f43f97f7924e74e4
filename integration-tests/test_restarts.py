"""Ranks of a training that are killed come back from the standby, and the training is as if none had been killed."""

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from accel_launch.launchers.local import free_port
from tools.bench.restarts import LAUNCHERS, train
from tools.harness.scripts import run_command

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux gives forks of a standby to the launcher"
)

# Of two ranks, the first kills itself, then the second, then both.
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
num_warm = accelerator.reduce(torch.tensor(float(is_warm), device=accelerator.device)).item()
if accelerator.is_main_process:
    print(json.dumps([attempt, num_warm, accelerator.num_processes, accelerator.device.type]), flush=True)
accelerator.wait_for_everyone()
if accelerator.num_processes == 1 or attempt in (accelerator.process_index, 2):
    if attempt < 3:
        os.kill(os.getpid(), signal.SIGKILL)
elif attempt < 3:
    time.sleep(600)
"""
LAUNCH = [sys.executable, "-m", "accel_launch", "launch", "--max_restarts", "3"]


def restarted(tmp_path, *machines):
    """Return what rank 0 has printed; each of the machines has its flags."""
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    commands = [[*LAUNCH, *flags, str(script)] for flags in machines]
    with ThreadPoolExecutor() as threads:
        ended = [*threads.map(lambda command: run_command(command, cwd=tmp_path, timeout_s=600), commands)]
    for each in ended:
        assert each.returncode == 0, each.stderr
        assert "without the standby" not in each.stderr
    return [json.loads(line) for line in ended[0].stdout.splitlines() if line.startswith("[")]


@pytest.mark.engine("long")
@pytest.mark.parametrize("num_machines", [1, 2])
def test_ranks_of_a_training_come_back_from_the_standby(tmp_path, num_machines):
    flags = ["--cpu", "--num_processes=2", f"--num_machines={num_machines}"]
    if num_machines > 1:
        flags += ["--main_process_ip=127.0.0.1", f"--main_process_port={free_port()}"]
    machines = [[*flags, f"--machine_rank={machine}"] for machine in range(num_machines)]
    assert restarted(tmp_path, *machines) == [
        [0, 0, 2, "cpu"],
        [1, 2, 2, "cpu"],
        [2, 2, 2, "cpu"],
        [3, 2, 2, "cpu"],
    ]


@pytest.mark.gpu
def test_a_rank_from_the_standby_uses_the_gpu_again_and_again(tmp_path):
    """The standby has touched no device, or CUDA would refuse to start in its forks."""
    assert restarted(tmp_path, ["--num_processes=1"]) == [
        [0, 0, 1, "cuda"],
        [1, 1, 1, "cuda"],
        [2, 1, 1, "cuda"],
        [3, 1, 1, "cuda"],
    ]


def assert_kills_change_nothing(launcher, *, num_kills):
    """Kill ranks of a training: no loss changes, and nothing is left behind."""
    killed = train(LAUNCHERS[launcher], gap_s=2, num_kills=num_kills, num_workers=1)
    undisturbed = train(LAUNCHERS["accel"], num_steps=min(200, max(killed.losses)))
    assert len(killed.recoveries_s) == num_kills
    assert "without the standby" not in killed.output
    assert max(step.attempt for step in killed.steps) == num_kills
    both = undisturbed.losses.keys() & killed.losses.keys()
    assert {step: killed.losses[step] for step in both} == {step: undisturbed.losses[step] for step in both}
    assert all(len(losses) == 1 for losses in killed.losses.values())
    assert killed.left == ()
    once, often = killed.usages[1], killed.usages[-1]
    assert often.num_descriptors == once.num_descriptors
    assert often.memory_mib < once.memory_mib + 20
    assert 0 < once.standby_mib < killed.usages[0].rank_mib  # a started rank has imported the same


@pytest.mark.engine("long")
@pytest.mark.parametrize(("launcher", "num_kills"), [("accel", 6), ("accel-machines", 4)])
def test_killed_ranks_change_no_loss_and_nothing_is_left_behind(launcher, num_kills):
    assert_kills_change_nothing(launcher, num_kills=num_kills)


@pytest.mark.engine("restarts")
@pytest.mark.timeout(850)  # it takes ten minutes; `faulthandler_timeout` ends the process after fifteen
def test_two_hundred_kills_change_no_loss_and_nothing_is_left_behind():
    assert_kills_change_nothing("accel", num_kills=200)
