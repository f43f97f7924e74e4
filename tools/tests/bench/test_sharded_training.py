"""The script behind the GPU case runs on CPU processes, too."""

from pathlib import Path

import pytest

from tools.bench.sharded_training import TINY, measured
from tools.harness.scripts import run_script

SCRIPT = """
import sys
from tools.bench.sharded_training import TINY, speed_on_this_rank
print(speed_on_this_rank(sys.argv[1], TINY, device_type="cpu"))
"""


def test_processes_are_started_and_tell_the_speed_of_plain_sharding():
    assert measured("raw", TINY, num_ranks=1, device_type="cpu") > 0


@pytest.mark.parametrize("variant", ["ours", "ours shared"])
def test_ours_trains_on_two_ranks(tmp_path, variant):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[3])
    done = run_script(script, variant, num_processes=2, env={"PYTHONPATH": root})
    assert done.returncode == 0, done.stderr
    assert all(float(line) > 0 for line in done.stdout.splitlines()), done.stdout
