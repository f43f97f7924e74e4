"""Whatever happens during a save, a checkpoint is there afterwards: kills, a full disk, failing ranks."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import checkpoint_faults
import pytest
from preloaded import SAVING

from tools.harness.scripts import run_command, run_script, start_ranks

FAILING = Path(__file__).with_name("failing_saves.py")
DEEPSPEED = pytest.mark.engine("deepspeed")
REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))

pytestmark = pytest.mark.engine("long")


def sharded(kind, behind):
    return {"num_processes": 2, "limit": 1, "behind": behind, "shards": kind}


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


def run_saves(script, *, project, **options):
    words = (Path(__file__).with_name(script), json.dumps({"project": str(project), **options}))
    done = run_script(*words, num_processes=2, timeout_s=200, preload=SAVING)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("mode", "error", "how"), [("replace", "EIO", "once"), ("background", "ENOSPC", "onward")]
)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the names of open files in /proc")
def test_a_call_that_fails_on_one_rank_is_named_on_all_and_loses_nothing(tmp_path, mode, error, how):
    options = {"mode": mode, "error": error, "how": how, "seed": 1, "sample": 4 * REPEATS}
    run_saves("failing_storage.py", project=tmp_path, **options)
    outcome = json.loads((tmp_path / "outcome").read_text())
    assert outcome["cases"] >= 8
    assert outcome["problems"] == []


@pytest.mark.parametrize(("how", "victim"), [("slow", 1), ("cut", 0), ("cut", 1)])
@pytest.mark.skipif(sys.platform != "linux", reason="finds the sockets in /proc")
def test_a_slow_rank_and_a_broken_connection_fail_no_save(tmp_path, how, victim):
    run_saves("slow_saves.py", project=tmp_path, how=how, victim=victim)
    assert [(tmp_path / f"outcome-{rank}").read_text() for rank in (0, 1)] == ["", ""]


def in_own_mounts(folder, *command):
    """Return a command that runs with a small file system at ``folder``, which goes when it ends."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = 'mount -t tmpfs -o size=3m tmpfs "$0" || exit 77; "$@"'
    return ["unshare", "--mount", *as_root, "sh", "-c", script, str(folder), *command]


@pytest.mark.parametrize(
    ("way", "codes"),
    [
        ("read_only_folder", [0]),
        ("permission_lost_while_writing", [0]),
        ("permission_lost_before_the_rename", [0]),
        ("permission_lost_for_the_old_one", [0]),
        ("a_rank_raises", [0, 0]),
        ("a_rank_is_killed", [0, -signal.SIGKILL]),
        ("the_rank_that_keeps_the_store_is_killed", [-signal.SIGKILL, 0]),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="permissions and signals as Linux has them")
def test_a_failing_save_explains_why_and_leaves_the_earlier_checkpoint(tmp_path, way, codes):
    with start_ranks([FAILING, tmp_path, way], len(codes), preload=SAVING) as ranks:
        assert [rank.process.wait(timeout=60) for rank in ranks] == codes


@pytest.mark.skipif(sys.platform != "linux", reason="a small file system as Linux mounts it")
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    command = in_own_mounts(tmp_path, sys.executable, str(FAILING), str(tmp_path), "full_disk")
    done = run_command(command, env={"OMP_NUM_THREADS": "1"}, timeout_s=60)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
