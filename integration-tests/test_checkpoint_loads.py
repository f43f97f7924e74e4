"""What is loaded is of one save, the newest, whatever fails and whichever process saves: samples of two commands."""

import sys
from pathlib import Path

import pytest
import two_jobs
from preloaded import ACCEL

from tools.harness.scripts import run_script

pytestmark = [
    pytest.mark.engine("long"),
    pytest.mark.skipif(sys.platform != "linux", reason="forks, and folders exchanged in one step"),
]
FAILING = Path(__file__).with_name("failing_reads.py")


def test_a_load_is_of_one_save_while_two_jobs_save():
    whole, replaced, mixed, _ = two_jobs.outcome(num=4, verify=True, form="full")
    assert mixed == 0
    assert whole + replaced == 4


def test_whichever_read_fails_the_newest_is_loaded_or_the_error_named():
    done = run_script(FAILING, "ESTALE", "newest", timeout_s=60, preload=ACCEL)
    assert done.returncode == 0, done.stdout + done.stderr
