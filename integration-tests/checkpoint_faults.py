"""Kill saving processes at random instants and see that a checkpoint is always there.

`python integration-tests/checkpoint_faults.py --kills 500` is the whole proof; the tests run 52. After each kill a
fresh look at the disk must find: a checkpoint that is complete, every digest right, all values those of one save, and
at most one save older than the last that was asked for. The next run goes on from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from safetensors import safe_open

from accel.checkpoints.choice import check_loadable, newest_checkpoint

SCRIPT = Path(__file__).with_name("save_forever.py")
START_S = 60
WAYS = [(num, limit, behind) for num in (1, 2) for limit in (1, 2) for behind in (False, True)]


class Savers:
    """A process that forks savers."""

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=20)
        self.process.stdout.close()

    def start(self, **options):
        self.process.stdin.write(json.dumps(options) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def wait_for_end(self):
        assert self.process.stdout.readline().strip() == "ended"


def kill_during_saves(savers, project, *, kills, num_processes, limit, behind, chance):
    """Start, kill and check again and again; return how many kills came between the begin and the end of a save."""
    num_hits = 0
    for number in range(kills):
        before = read(project / "done")
        pids = savers.start(project=str(project), limit=limit, behind=behind, num_processes=num_processes)
        end = time.monotonic() + START_S
        while read(project / "done") < before + 2:
            assert time.monotonic() < end, "the savers do not save"
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.04))
        chance.shuffle(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        savers.wait_for_end()
        num_hits += read(project / "asked") != read(project / "done")
        check(project, limit=limit, where=f"kill {number}")
    return num_hits


def read(path):
    return int(path.read_text()) if path.exists() else -1


def check(project, *, limit, where):
    folder = project / "checkpoints"
    newest = newest_checkpoint(folder)
    found = check_loadable(newest, verify=True)
    value, asked = value_in(newest), read(project / "asked")
    assert value >= asked - 1, f"{where}: the newest checkpoint is of save {value}, {asked} was asked for"
    assert found.number == value, f"{where}: checkpoint_{found.number} holds the values of save {value}"
    committed = [name for name in os.listdir(folder) if name.startswith("checkpoint_")]
    # The newest may be there while the oldest is not yet gone.
    assert len(committed) <= limit + 1, f"{where}: {committed}"


def value_in(checkpoint):
    with safe_open(checkpoint / "model.safetensors", framework="pt") as file:
        values = {value.item() for name in file.keys() for value in file.get_tensor(name).unique()}  # noqa: SIM118
    assert len(values) == 1, f"{checkpoint} holds values of several saves: {values}"
    return int(values.pop())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with Savers() as savers:
        for number, (num_processes, limit, behind) in enumerate(WAYS):
            kills = options.kills // len(WAYS) + (number < options.kills % len(WAYS))
            begun = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                hits = kill_during_saves(
                    savers,
                    Path(folder),
                    kills=kills,
                    num_processes=num_processes,
                    limit=limit,
                    behind=behind,
                    chance=chance,
                )
            kind = "behind the loop" if behind else "blocking"
            print(
                f"{num_processes} process(es), total_limit={limit}, {kind}: {kills} kills, "
                f"{hits} of them inside a save, nothing lost ({time.monotonic() - begun:.0f} s)",
                flush=True,
            )


if __name__ == "__main__":
    main()
