"""Send SIGTERM to training runs at random instants, and see that each ends as if nobody had.

`python integration-tests/preemptions.py --runs 20 --kills 5` is the long form; the tests run a short one. Whoever is
asked saves and leaves with the exit code that says "queue me again"; the next process continues from there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import tempfile
import time
from pathlib import Path

from forking import Runs

from accel.preemption import REQUEUE

SCRIPT = Path(__file__).with_name("preempted_training.py")
LIMIT_S = 90
STEPS = 150
PACE_S = 0.01


def unbroken(trainers, project, *, num_processes):
    project.mkdir()
    options = {"project": str(project), "steps": STEPS, "pace_s": 0, "behind": False}
    trainers.start(num_processes=num_processes, **options)
    assert trainers.codes() == [0] * num_processes
    return results(project, num_processes)


def broken(trainers, project, *, num_processes, kills, chance):
    """Train with up to ``kills`` interruptions; return the results and how often the run left to be queued again."""
    project.mkdir()
    options = {"project": str(project), "steps": STEPS, "pace_s": PACE_S}
    num_left = 0
    while True:
        ready = [project / f"ready-{rank}" for rank in range(num_processes)]
        for file in ready:
            file.unlink(missing_ok=True)
        behind = chance.random() < 0.5
        pids = trainers.start(num_processes=num_processes, behind=behind, **options)
        if num_left < kills:
            wait_for(ready)
            time.sleep(chance.uniform(0, STEPS * PACE_S / 2))
            for pid in chance.sample(pids, chance.randint(1, num_processes)):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        codes = trainers.codes()
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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with Runs(SCRIPT) as trainers, tempfile.TemporaryDirectory() as folder:
        expected = {num: unbroken(trainers, Path(folder) / f"{num}", num_processes=num) for num in (1, 2)}
        for number in range(options.runs):
            num_processes = 1 + number % 2
            found, num_left = broken(
                trainers,
                Path(folder) / f"run-{number}",
                num_processes=num_processes,
                kills=options.kills,
                chance=chance,
            )
            assert found == expected[num_processes], f"run {number} has another result"
            print(
                f"run {number}, {num_processes} process(es): stopped {num_left} times, the same result",
                flush=True,
            )


if __name__ == "__main__":
    main()
