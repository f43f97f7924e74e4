"""Under DeepSpeed, checkpoints of Accelerate load here and ours load there, and both train alike."""

import json
import os

import deepspeed_either_package
import pytest

from tools.harness.scripts import run_script

pytestmark = pytest.mark.engine("deepspeed")
PEER_FOLDER = os.environ.get("ACCEL_TEST_PEER_FOLDER", "")


def use_both(folder):
    """Train, save and load with both packages, in the same processes."""
    script = deepspeed_either_package.__file__
    env = {"ACCELERATE_USE_DEEPSPEED": "true", "HF_HOME": str(folder / "hf")}
    done = run_script(script, str(folder), PEER_FOLDER, num_processes=2, env=env, timeout_s=240)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def read(folder, name):
    return [json.loads((folder / f"{name}.{rank}").read_text()) for rank in range(2)]


@pytest.mark.parametrize("outcome", [use_both], indirect=True)
def test_losses_are_those_of_accelerate(outcome):
    assert read(outcome, "accel-losses") == read(outcome, "accelerate-losses")


@pytest.mark.parametrize("outcome", [use_both], indirect=True)
@pytest.mark.parametrize("saver", ["accelerate", "accel"])
@pytest.mark.parametrize("stage", [2, 3])
def test_everything_carries_over(outcome, saver, stage):
    saved, loaded = (read(outcome, f"{saver}-{stage}-{action}") for action in ("save", "load"))
    for rank in range(2):
        draws = saved[rank].pop("draws"), loaded[rank].pop("draws")
        if saver == "accel" and rank == 0:
            assert draws[0] == draws[1]
    assert loaded == saved
