"""Send SIGTERM to training runs at random instants, and see that each ends as if nobody had.

Whoever is asked saves and leaves with the exit code that says "queue me again"; the next process continues from there.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

from preloaded import SAVING

from accel.preemption import REQUEUE
from tools.harness.scripts import start_ranks

SCRIPT = Path(__file__).with_name("preempted_training.py")
LIMIT_S = 90
STEPS = 150
PACE_S = 0.01


def started(project, num_processes, **options):
    argv = [SCRIPT, json.dumps({"project": str(project), "steps": STEPS, **options})]
    return start_ranks(argv, num_processes, preload=SAVING)


def codes_of(ranks):
    return [rank.process.wait(timeout=LIMIT_S) for rank in ranks]


def unbroken(project, *, num_processes):
    project.mkdir()
    with started(project, num_processes, pace_s=0, behind=False) as ranks:
        assert codes_of(ranks) == [0] * num_processes
    return results(project, num_processes)


def broken(project, *, num_processes, kills, chance):
    """Train with up to ``kills`` interruptions; return the results and how often the run left to be queued again."""
    project.mkdir()
    num_left = 0
    while True:
        ready = [project / f"ready-{rank}" for rank in range(num_processes)]
        for file in ready:
            file.unlink(missing_ok=True)
        with started(project, num_processes, pace_s=PACE_S, behind=chance.random() < 0.5) as ranks:
            if num_left < kills:
                wait_for(ready)
                time.sleep(chance.uniform(0, STEPS * PACE_S / 2))
                for rank in chance.sample(ranks, chance.randint(1, num_processes)):
                    rank.process.send_signal(signal.SIGTERM)
            codes = codes_of(ranks)
        if codes == [0] * num_processes:
            return results(project, num_processes), num_left
        assert codes == [REQUEUE] * num_processes, codes
        assert len(os.listdir(project / "checkpoints")) == 1
        num_left += 1


def wait_for(files):
    end = time.monotonic() + LIMIT_S
    while not all(file.exists() for file in files):
        assert time.monotonic() < end, "the run does not begin"
        time.sleep(0.005)


def results(project, num_processes):
    return [json.loads((project / f"result-{rank}").read_text()) for rank in range(num_processes)]
