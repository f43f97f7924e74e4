"""The front door: any Python reads it, it needs nothing but that, and it hands on."""

import subprocess
import sys
from pathlib import Path

from tools import front_door
from tools.running import SetupError

DEV = Path(__file__).resolve().parents[1] / "dev.py"
COMMANDS = ("demo", "test", "check", "docs", "isolated", "wheels", "release", "bench", "gpu")
PRETEND = "import sys, runpy; sys.version_info = (3, 9, 1); runpy.run_path(sys.argv[1], run_name='__main__')"


def run(*words):
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_an_old_python_is_told_in_one_line():
    done = run("-c", PRETEND, DEV)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Python 3.11 or newer is needed, ")


def test_the_front_door_needs_the_standard_library_only():
    done = run("-I", "-S", DEV, "--help")
    assert done.returncode == 0
    assert all(f"    {command} " in done.stdout for command in COMMANDS)


def test_what_follows_the_dashes_is_handed_on_and_an_error_of_the_set_up_is_one_line(monkeypatch, capsys):
    def bench(arguments):
        return 3 if arguments.handed_on == ["-k", "gather", "--", "x"] else 4

    def demo(arguments):
        raise SetupError("no way")

    for command in (bench, demo):
        monkeypatch.setattr(front_door, command.__name__, command)
    assert front_door.main(["bench", "--", "-k", "gather", "--", "x"]) == 3
    assert front_door.main(["demo"]) == 1
    assert capsys.readouterr().err == "error: no way\n"
