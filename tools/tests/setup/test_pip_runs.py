import io
import sys
from pathlib import Path

import pytest

from tools.setup.failures import SetupError
from tools.setup.pip_runs import Progress, run_pip

OUTPUT = """\
Collecting torch==2.13.0
  Downloading torch-2.13.0-cp311.whl (200 MB)
Collecting numpy
  Downloading numpy-2.4.6-cp311.whl (16 MB)
Installing collected packages: numpy, torch
"""


def test_each_stage_is_announced_once_where_there_is_no_terminal(capsys):
    with Progress("filling", io.StringIO()) as progress:
        for line in OUTPUT.splitlines():
            progress.take(line)
    lines = capsys.readouterr().err.splitlines()
    stages = ["resolving", "downloading", "unpacking"]
    assert lines[:3] == [f"[dev] filling: {stage} …" for stage in stages]
    assert len(lines) == 4


def test_what_pip_works_on_is_named():
    progress = Progress("filling", io.StringIO())
    seen = []
    for line in OUTPUT.splitlines():
        progress.take(line)
        seen.append(progress.stage)
    assert seen == [
        "resolving 1 packages, torch==2.13.0",
        "downloading torch 200 MB",
        "resolving 2 packages, numpy",
        "downloading numpy 16 MB",
        "unpacking 2 packages",
    ]


def test_a_failure_is_told_in_one_line_and_the_log_has_the_output(tmp_path):
    command = [sys.executable, "-c", "print('ERROR: no such version'); raise SystemExit(1)"]
    log = tmp_path / "pip.log"
    with pytest.raises(SetupError, match=r"ERROR: no such version.*pip.log"):
        run_pip("filling", command, cwd=Path(), environ={}, log=log)
    assert "ERROR: no such version" in log.read_text()
