"""Going on from a checkpoint, in a new process, is as if nothing had been between."""

import json
from functools import partial
from pathlib import Path

import preloaded
import pytest

from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("long")
SCRIPT = Path(__file__).with_name("resume_training.py")


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
