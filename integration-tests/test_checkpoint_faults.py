"""Whatever happens during a save, a checkpoint is there afterwards: kills, a full disk, failing ranks."""

import os
import random
import sys
from pathlib import Path

import checkpoint_faults
import pytest
import storage_faults
from forking import Runs

from tools.harness.scripts import run_command, run_script

FAILING = Path(__file__).with_name("failing_saves.py")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def savers():
    with Runs(checkpoint_faults.SCRIPT) as running:
        yield running


@pytest.mark.parametrize(("num_processes", "limit", "behind"), checkpoint_faults.PAIRS)
def test_nothing_is_lost_when_a_save_is_killed(savers, tmp_path, num_processes, limit, behind):
    hits = checkpoint_faults.kill_during_saves(
        savers,
        tmp_path,
        kills=7,
        enough=2,
        num_processes=num_processes,
        limit=limit,
        behind=behind,
        chance=random.Random(f"{num_processes}{limit}{behind}"),
    )
    assert hits > 0  # some came inside a save, or nothing was tried


@pytest.mark.parametrize(("shards", "behind"), checkpoint_faults.SHARDED_WAYS)
def test_nothing_is_lost_when_a_save_of_shards_is_killed(savers, tmp_path, shards, behind):
    hits = checkpoint_faults.kill_during_saves(
        savers,
        tmp_path,
        kills=7,
        enough=2,
        num_processes=2,
        limit=1,
        behind=behind,
        shards=shards,
        chance=random.Random(f"{shards}{behind}"),
    )
    assert hits > 0


@pytest.mark.engine("deepspeed")
@pytest.mark.parametrize(("stage", "behind"), [(2, True), (3, False)])
def test_nothing_is_lost_when_a_save_of_engines_is_killed(savers, tmp_path, stage, behind):
    hits = checkpoint_faults.kill_during_saves(
        savers,
        tmp_path,
        kills=5,
        enough=2,
        num_processes=2,
        limit=1,
        behind=behind,
        stage=stage,
        chance=random.Random(f"{stage}{behind}"),
    )
    assert hits > 0


def test_nothing_is_lost_whichever_call_is_the_last(tmp_path):
    with Runs(checkpoint_faults.INTERRUPTED) as runs:
        num_calls = checkpoint_faults.interrupt_at_every_call(runs, tmp_path, how="kill", counts_writes=False)
    assert num_calls >= 15  # else the calls were not seen


@pytest.fixture(scope="module")
def failing_saves():
    with Runs(storage_faults.SCRIPT) as running:
        yield running


@pytest.mark.parametrize(
    ("mode", "error", "how"), [("replace", "EIO", "once"), ("background", "ENOSPC", "onward")]
)
@pytest.mark.skipif(sys.platform != "linux", reason="finds the names of open files in /proc")
def test_a_call_that_fails_on_one_rank_is_named_on_all_and_loses_nothing(failing_saves, mode, error, how):
    num_cases, problems = storage_faults.run(
        failing_saves, num_processes=2, mode=mode, error=error, how=how, seed=1, sample=4
    )
    assert num_cases == 8
    assert problems == []


@pytest.fixture(scope="module")
def hampered_saves():
    with Runs(Path(__file__).with_name("slow_saves.py")) as running:
        yield running


@pytest.mark.parametrize(("how", "victim"), [("slow", 1), ("cut", 0), ("cut", 1)])
@pytest.mark.skipif(sys.platform != "linux", reason="finds the sockets in /proc")
def test_a_slow_rank_and_a_broken_connection_fail_no_save(hampered_saves, tmp_path, how, victim):
    hampered_saves.start(num_processes=2, project=str(tmp_path), how=how, victim=victim)
    assert hampered_saves.codes() == [0, 0]
    assert [(tmp_path / f"outcome-{rank}").read_text() for rank in (0, 1)] == ["", ""]


WAYS = [
    "read-only-folder",
    "permission-lost-while-writing",
    "permission-lost-before-the-rename",
    "permission-lost-for-the-old-one",
    "a-rank-raises",
    "a-rank-is-killed",
    "the-rank-that-keeps-the-store-is-killed",
]


def in_own_mounts(folder, *command):
    """Return a command that runs with a small file system at ``folder``, which goes when it ends."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    script = 'mount -t tmpfs -o size=3m tmpfs "$0" || exit 77; "$@"; cat "$0"/*.log >&2'
    return ["unshare", "--mount", *as_root, "sh", "-c", script, str(folder), *command]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What was wrong in each way of failing; all are tried by one process, which imports everything once."""
    folder = tmp_path_factory.mktemp("failing")
    done = run_script(FAILING, str(folder), *WAYS, timeout_s=200)
    assert done.returncode == 0, done.stdout + done.stderr
    return {way: (folder / f"{way}.log").read_text() for way in WAYS}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.skipif(sys.platform != "linux", reason="permissions and signals as Linux has them")
def test_a_failing_save_explains_why_and_leaves_the_earlier_checkpoint(outcomes, way):
    assert outcomes[way] == ""


@pytest.mark.skipif(sys.platform != "linux", reason="a small file system as Linux mounts it")
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    command = in_own_mounts(tmp_path, sys.executable, str(FAILING), str(tmp_path), "full-disk")
    done = run_command(command, env={"OMP_NUM_THREADS": "1"}, timeout_s=60)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Error" not in done.stderr
