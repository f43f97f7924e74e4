"""Going on from a checkpoint, in a new process, is as if nothing had been between."""

import hashlib
import json
import os
import signal
from functools import partial
from pathlib import Path

import preloaded
import pytest
import torch
from torch.utils.data import DataLoader

from accel_data import prepare_data_loader
from tools.harness.scripts import run_script, start_ranks

pytestmark = pytest.mark.engine("long")
SCRIPT = Path(__file__).with_name("resume_training.py")
READ_ON = Path(__file__).with_name("read_on.py")


def train(out, *options, num_processes=1):
    done = run_script(
        SCRIPT, str(out), *options, num_processes=num_processes, timeout_s=120, preload=preloaded.ACCEL
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(Path(f"{out}.{rank}").read_text()) for rank in range(num_processes)], done


def resumed_and_unbroken(folder, *, options=(), num_processes=1, save=()):
    unbroken, _ = train(folder / "unbroken", *options, num_processes=num_processes)
    saving = ["--stop", "20", "--save", str(folder / "saved"), *save]
    train(folder / "half", *options, *saving, num_processes=num_processes)
    resumed, _ = train(
        folder / "resumed", *options, "--load", str(folder / "saved"), num_processes=num_processes
    )
    return resumed, unbroken


def jobs(*given, ids):
    """Have these functions run side by side; the test gets what its own gave back, as ``outcome``."""
    return pytest.mark.parametrize("outcome", given, ids=ids, indirect=True)


@jobs(
    partial(resumed_and_unbroken, options=["--workers", "2", "--accumulate", "2"]),
    partial(resumed_and_unbroken, options=["--precision", "fp16", "--seedable"]),
    ids=["workers-accumulation", "fp16-seedable"],
)
def test_resuming_mid_epoch_is_bit_exact(outcome):
    resumed, unbroken = outcome
    assert len(unbroken[0]["losses"]) == 40
    assert resumed == unbroken


@jobs(partial(resumed_and_unbroken, num_processes=2, save=["--behind"]), ids=["two"])
def test_resuming_on_two_processes_from_a_save_behind_the_loop_is_bit_exact(outcome):
    resumed, unbroken = outcome
    assert resumed[0] == unbroken[0]
    # Rank 1's earlier losses were not saved: a custom object is the main process's.
    assert resumed[1]["losses"][20:] == unbroken[1]["losses"][20:]
    assert resumed[1]["weights"] == unbroken[1]["weights"]
    assert unbroken[0]["losses"][20:] != unbroken[1]["losses"][20:]


def one_after_two(folder):
    train(folder / "half", "--stop", "3", "--save", str(folder / "saved"), num_processes=2)
    return train(folder / "resumed", "--steps", "10", "--load", str(folder / "saved"))


@jobs(one_after_two, ids=["one after two"])
def test_one_process_continues_from_two_with_the_rest_of_the_epoch(outcome):
    [resumed], done = outcome
    assert len(resumed["losses"]) == 10
    assert done.stderr.count("every rank derives new random states") == 1


def test_ranks_that_were_killed_are_followed_by_others_that_read_on(tmp_path):
    progress = tmp_path / "progress.json"
    for num_ranks, pause_at in ((2, 70), (3, 450)):
        with start_ranks([READ_ON, progress, str(pause_at)], num_ranks) as ranks:
            for rank in ranks:
                rank.wait_for_output("pausing")
            for rank in ranks:
                os.killpg(rank.process.pid, signal.SIGKILL)  # with its workers
        assert pause_at <= len(json.loads(progress.read_text())["stream"]) < pause_at + 9
    done = run_script(READ_ON, str(progress))
    assert done.returncode == 0, done.stderr
    assert digest(json.loads(progress.read_text())["stream"]) == digest(unbroken_stream())


def digest(stream):
    return hashlib.sha256(json.dumps(stream).encode()).hexdigest()


def unbroken_stream():
    generator = torch.Generator().manual_seed(11)
    given = DataLoader(torch.arange(400), batch_size=3, shuffle=True, generator=generator)
    loader = prepare_data_loader(given, num_processes=1, process_index=0)
    return [number for _ in range(2) for batch in loader for number in batch.tolist()]
