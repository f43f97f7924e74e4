"""No checkpoint is lost, whenever ranks are killed and whichever call into the file system fails on whichever rank.

The tests of accel-checkpoint kill, fail and interrupt one process at each call of a save.
"""

import json
import os
import random
import sys
from pathlib import Path

import checkpoint_faults
import pytest
from preloaded import SAVING

from tools.harness.scripts import run_script

HERE = Path(__file__).parent
REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the names of open files in /proc"),
]


def sharded(kind, behind):
    return {"num_processes": 2, "limit": 1, "behind": behind, "shards": kind}


DEEPSPEED = pytest.mark.engine("deepspeed")
WAYS_TO_SAVE = [
    # every pair of processes, `total_limit` and whether the save runs in the background
    {"num_processes": 1, "limit": 1, "behind": False},
    {"num_processes": 1, "limit": 2, "behind": True},
    {"num_processes": 2, "limit": 1, "behind": True},
    {"num_processes": 2, "limit": 2, "behind": False},
    sharded("SHARDED_STATE_DICT", False),
    sharded("SHARDED_STATE_DICT", True),
    sharded("FULL_STATE_DICT", False),
    *(
        pytest.param({"num_processes": 2, "limit": 1, "behind": behind, "stage": stage}, marks=DEEPSPEED)
        for stage, behind in [(2, True), (3, False)]
    ),
]


@pytest.mark.parametrize("way", WAYS_TO_SAVE, ids=lambda way: " ".join(map(str, way.values())))
def test_nothing_is_lost_when_a_save_is_killed(tmp_path, way):
    chance = random.Random(str(way))
    hits = checkpoint_faults.kill_during_saves(
        tmp_path, kills=7 * REPEATS, enough=2 * REPEATS, chance=chance, **way
    )
    assert hits > 0  # some came inside a save, or nothing was tried


@pytest.mark.parametrize(
    ("mode", "error", "how"), [("replace", "EIO", "once"), ("background", "ENOSPC", "onward")]
)
def test_a_call_that_fails_on_one_rank_is_named_on_all_and_loses_nothing(tmp_path, mode, error, how):
    options = {"project": str(tmp_path), "mode": mode, "error": error, "how": how, "sample": 4 * REPEATS}
    words = (HERE / "failing_storage.py", json.dumps(options))
    done = run_script(*words, num_processes=2, timeout_s=200, preload=SAVING)
    assert done.returncode == 0, done.stderr
    outcome = json.loads((tmp_path / "outcome").read_text())
    assert outcome["cases"] >= 8
    assert outcome["problems"] == []


def test_whichever_read_fails_the_newest_is_loaded_or_the_error_named():
    done = run_script(HERE / "failing_reads.py", timeout_s=60, preload=SAVING)
    assert done.returncode == 0, done.stdout + done.stderr
