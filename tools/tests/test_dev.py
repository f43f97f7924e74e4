import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DEV = Path(__file__).resolve().parents[1] / "dev.py"
OLD_PYTHONS = ("python2.7", "python3.6", "python3.7", "python3.8", "python3.9", "python3.10")
PRETEND = "import sys, runpy; sys.version_info = (3, 9, 1); runpy.run_path(sys.argv[1], run_name='__main__')"


def run(*words, **settings):
    return subprocess.run(
        [*map(str, words)], capture_output=True, text=True, timeout=60, check=False, **settings
    )


def test_an_old_python_is_told_in_one_line():
    done = run(sys.executable, "-c", PRETEND, DEV)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: Python 3.11 or newer is needed, {sys.executable} is Python 3.9."
        " Run this file with a newer one, for example `python3.11 tools/dev.py`.\n"
    )


def test_real_old_pythons_read_the_file():
    found = [name for name in OLD_PYTHONS if shutil.which(name) and run(name, "-c", "pass").returncode == 0]
    if not found:
        pytest.skip("needs a Python older than 3.11")
    for name in found:
        done = run(name, DEV, "demo")
        assert done.stderr.startswith("error: Python 3.11 or newer is needed"), done.stderr
        assert "Traceback" not in done.stderr


def test_help_names_every_command():
    done = run(sys.executable, DEV, "--help", cwd=os.sep)
    assert done.returncode == 0
    for command in (
        "demo",
        "test",
        "check",
        "docs",
        "isolated",
        "wheels",
        "release",
        "bench",
        "gpu",
    ):
        assert f"    {command} " in done.stdout


def test_the_front_door_needs_the_standard_library_only():
    assert run(sys.executable, "-I", "-S", DEV, "--help").returncode == 0
