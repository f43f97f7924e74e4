"""`accel launch` within a real SLURM job of two nodes, and `accel launch --slurm`."""

from __future__ import annotations

import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine("slurm")
ACCEL = [sys.executable, "-m", "accel_launch", "launch", "--cpu"]
SUM = """
import os
import torch
from accel import Accelerator
accelerator = Accelerator(cpu=True)
total = accelerator.reduce(torch.tensor([float(accelerator.process_index + 1)]), "sum")
node = os.environ["SLURMD_NODENAME"]
print(f"rank {accelerator.process_index} of {accelerator.num_processes} on {node} sees {total.item()}", flush=True)
accelerator.end_training()
"""
# Trains until it is told to stop, or three steps further than the run that was told to.
TRAIN = """
import os, time
from pathlib import Path
import torch
from accel import Accelerator

class Steps:
    number = 0
    def state_dict(self):
        return {"number": self.number}
    def load_state_dict(self, state):
        self.number = state["number"]

accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(1, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.001))
steps = Steps()
accelerator.register_for_checkpointing(steps)
last = 10**6
if Path("preempted").exists():
    accelerator.load_state("preempted")
    last = steps.number + 3
who = f"rank {accelerator.process_index} in run {os.environ.get('SLURM_RESTART_COUNT', '0')}"
with accelerator.handle_preemption():
    print(who, "begins after step", steps.number, flush=True)
    while steps.number < last:
        accelerator.backward(model(torch.ones(1, 1)).sum())
        optimizer.step()
        optimizer.zero_grad()
        steps.number += 1
        time.sleep(0.01)
        if accelerator.should_stop:
            accelerator.save_state("preempted")
            print(who, "saves after step", steps.number, flush=True)
            break
print(who, "is through after step", steps.number, flush=True)
accelerator.end_training()
"""
# Waits for a SIGTERM in the first run of the job, and is through at once in the second.
AGAIN = """
import os, signal, sys, time
count = os.environ.get("SLURM_RESTART_COUNT", "0")
def save(*_):
    print("saved in run", count, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("run", count, "of", os.environ["SLURM_JOB_ID"], flush=True)
time.sleep(60 if count == "0" else 0)
"""


@pytest.fixture
def script(cluster):
    def write(body: str) -> str:
        (cluster.folder / "train.py").write_text(body)
        return "train.py"

    return write


def wait_for(file: Path, text: str, timeout_s: float = 180) -> str:
    deadline = time.monotonic() + timeout_s
    while not (file.exists() and text in file.read_text()):
        if time.monotonic() > deadline:
            raise AssertionError(f"no `{text}` in {file.read_text() if file.exists() else 'a missing file'}")
        time.sleep(0.3)
    return file.read_text()


def test_one_task_per_node_finds_its_machines(cluster, script):
    told = cluster.run("srun", "-N2", "--ntasks-per-node=1", *ACCEL, "--num_processes=4", script(SUM))
    assert sorted(line for line in told.splitlines() if line.startswith("rank")) == [
        f"rank {rank} of 4 on n{rank // 2} sees 10.0" for rank in range(4)
    ]


def test_a_batch_job_starts_on_all_its_nodes(cluster, script):
    flags = ["--slurm", "--num_machines=2", "--slurm_options=--output=job-%j.out"]
    told = cluster.run(*ACCEL, *flags, script(SUM))
    job = re.fullmatch(r"Submitted batch job (\d+)\n", told)[1]
    output = wait_for(cluster.folder / f"job-{job}.out", "rank 1 of 2")
    assert "rank 1 of 2 on n1 sees 3.0" in output


def test_exit_codes_come_through(cluster, script):
    command = [
        "srun",
        "-N2",
        "--ntasks-per-node=1",
        *ACCEL,
        "--num_processes=2",
        script("raise SystemExit(3)"),
    ]
    with pytest.raises(AssertionError, match="gave 3"):
        cluster.run(*command)


def test_an_array_is_several_jobs(cluster, script):
    flags = ["--slurm", "--slurm_array=0-1", "--slurm_options=--output=array-%a.out"]
    cluster.run(*ACCEL, *flags, script("import os; print('task', os.environ['SLURM_ARRAY_TASK_ID'])"))
    for task in (0, 1):
        assert wait_for(cluster.folder / f"array-{task}.out", "task") == f"task {task}\n"


def test_tasks_of_srun_meet_by_themselves(cluster, script):
    assert "MASTER_ADDR" in cluster.environ
    assert "MASTER_PORT" not in cluster.environ
    told = cluster.run("srun", "-N2", "--ntasks-per-node=1", sys.executable, script(SUM))
    assert sorted(told.splitlines()) == [f"rank {rank} of 2 on n{rank} sees 3.0" for rank in (0, 1)]


def preempted_job(cluster):
    (cluster.folder / "once_more.py").write_text(TRAIN)
    flags = ["--slurm", "--slurm_requeue", "--num_machines=2", "--slurm_options=--output=train.out"]
    job = cluster.run(*ACCEL, *flags, "once_more.py").split()[-1]
    output = cluster.folder / "train.out"
    for rank in (0, 1):
        wait_for(output, f"rank {rank} in run 0 begins after step 0\n")
    cluster.run("scancel", "--signal=TERM", "--batch", job)
    wait_for(output, "rank 0 in run 1 is through")
    text = wait_for(output, "rank 1 in run 1 is through")
    return text, cluster.run("scontrol", "show", "job", job)


def preempted_task(cluster):
    (cluster.folder / "again.py").write_text(AGAIN)
    flags = ["--slurm", "--slurm_requeue", "--slurm_array=0-1", "--slurm_options=--output=again-%a.out"]
    job = cluster.run(*ACCEL, *flags, "again.py").split()[-1]
    untouched, told = (cluster.folder / f"again-{task}.out" for task in (0, 1))
    for output in (untouched, told):
        wait_for(output, "run 0 of")
    shown = cluster.run("scontrol", "show", "job", f"{job}_1")
    cluster.run("scancel", "--signal=TERM", "--batch", f"{job}_1")
    text = wait_for(told, "run 1 of")
    of_untouched = untouched.read_text()
    cluster.run("scancel", job)
    return job, shown, text, of_untouched


@pytest.fixture(scope="module")
def queued_again(cluster):
    """What came of jobs that went back into the queue: side by side, since SLURM holds each there for six seconds."""
    with ThreadPoolExecutor() as pool:
        return [pool.submit(job, cluster) for job in (preempted_job, preempted_task)]


def test_a_job_on_two_nodes_that_gets_a_sigterm_saves_and_its_next_run_continues_from_there(queued_again):
    text, shown = queued_again[0].result()
    for rank in (0, 1):
        saved = re.search(rf"rank {rank} in run 0 saves after step (\d+)\n", text)[1]
        assert f"rank {rank} in run 1 begins after step {saved}\n" in text
        assert f"rank {rank} in run 1 is through after step {int(saved) + 3}\n" in text
        assert f"rank {rank} in run 0 is through" not in text
    assert "Restarts=1" in shown


def test_of_an_array_only_the_task_that_got_the_signal_queues_again(queued_again):
    job, shown, text, of_untouched = queued_again[1].result()
    # Its number is the one of the whole array, which it must not put back.
    assert f"JobId={job} ArrayJobId={job} ArrayTaskId=1" in shown
    assert "saved in run 0" in text
    assert of_untouched.startswith("run 0 of")
    assert "saved" not in of_untouched
