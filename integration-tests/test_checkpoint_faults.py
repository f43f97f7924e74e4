"""Whichever call into the file system fails, on whichever rank, no checkpoint is lost and the error is named.

The tests of accel-checkpoint kill, fail and interrupt one process at each call of a save.
"""

import json
import os
import sys
from pathlib import Path

import pytest
from preloaded import SAVING

from tools.harness.scripts import run_script

HERE = Path(__file__).parent
REPEATS = int(os.environ.get("ACCEL_TEST_REPEATS", "1"))

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.skipif(sys.platform != "linux", reason="finds the names of open files in /proc"),
]


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
