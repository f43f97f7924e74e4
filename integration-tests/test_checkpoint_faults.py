"""Whatever happens during a save, a checkpoint is there afterwards: kills, a full disk, failing ranks."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from accel_state.testing import run_script

sys.path.insert(0, str(Path(__file__).parent))
import checkpoint_faults

FAILING = Path(__file__).with_name("failing_saves.py")


@pytest.fixture(scope="module")
def savers():
    with checkpoint_faults.Savers() as running:
        yield running


@pytest.mark.parametrize(("num_processes", "limit", "behind"), checkpoint_faults.WAYS)
def test_nothing_is_lost_when_a_save_is_killed(savers, tmp_path, num_processes, limit, behind):
    hits = checkpoint_faults.kill_during_saves(
        savers,
        tmp_path,
        kills=7 if num_processes == 1 else 6,
        num_processes=num_processes,
        limit=limit,
        behind=behind,
        chance=random.Random(f"{num_processes}{limit}{behind}"),
    )
    assert hits > 0  # some came inside a save, or nothing was tried


@pytest.mark.parametrize("how", ["a-rank-raises", "a-rank-is-killed"])
def test_a_failing_rank_fails_the_save_on_every_rank(tmp_path, how):
    done = run_script(FAILING, str(tmp_path), how, num_processes=1, timeout_s=60)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_leaves_the_earlier_checkpoint(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
        timeout=20,
    )
    if mounted.returncode != 0:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        done = run_script(FAILING, str(tmp_path), "full-disk", timeout_s=60)
        assert done.returncode == 0, done.stdout + done.stderr
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True, timeout=20)
