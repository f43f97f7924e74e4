"""Checkpoints of Accelerate load here, and ours load there, with the real package."""

import json
from functools import partial
from pathlib import Path

import pytest

from tools.harness.scripts import run_script

SCRIPT = Path(__file__).with_name("either_package.py")

pytestmark = pytest.mark.engine("long")


SHARDED_SCRIPT = Path(__file__).with_name("sharded_either_package.py")


def carry_shards_over(folder):
    """Save shards with one package and load them with another, in two processes."""
    env = {"ACCELERATE_USE_CPU": "true"}
    done = run_script(SHARDED_SCRIPT, str(folder), num_processes=2, env=env, timeout_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def carry_over(folder, *, options, num_processes):
    """Save with each package and load with the other, in the same processes."""
    env = {"ACCELERATE_USE_CPU": "true"}
    done = run_script(SCRIPT, str(folder), *options, num_processes=num_processes, env=env, timeout_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder, num_processes


ONE_BIN = partial(carry_over, options=["bin", "scaler"], num_processes=1)
ONE_SAFE = partial(carry_over, options=["safe", "position"], num_processes=1)
TWO = partial(carry_over, options=["safe", "position"], num_processes=2)


@pytest.mark.parametrize("saver", ["accelerate", "accel"])
@pytest.mark.parametrize(
    "outcome", [ONE_BIN, ONE_SAFE, TWO], ids=["bin-scaler", "safe-position", "two-processes"], indirect=True
)
def test_everything_carries_over(outcome, saver):
    folder, num_processes = outcome
    for rank in range(num_processes):
        saved, loaded = (
            json.loads((folder / f"{saver}-{action}.{rank}").read_text()) for action in ("save", "load")
        )
        assert loaded == saved


@pytest.mark.parametrize("way", ["accelerate-accel", "accel-accelerate", "torch-accel", "accel-torch"])
@pytest.mark.parametrize("outcome", [carry_shards_over], indirect=True, ids=["sharded"])
def test_shards_carry_over(outcome, way):
    for rank in range(2):
        saved, loaded = (
            json.loads((outcome / f"{way}-{action}.{rank}").read_text()) for action in ("save", "load")
        )
        assert loaded == saved
