"""Running real scripts: exit codes, output, and that nothing is left when time is up."""

import subprocess
import sys
import time

import psutil
import pytest

from tools.harness.scripts import run_command, run_script


def test_exit_code_output_arguments_variables_and_folder_come_back(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['WORD'], os.environ['OMP_NUM_THREADS'], os.getcwd())\n"
        "print('bad', file=sys.stderr)\nsys.exit(4)"
    )
    ran = run_script(script, "--flag", "x", env={"WORD": "hello"}, cwd=tmp_path)
    printed = f"['--flag', 'x'] hello 1 {tmp_path}\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (4, printed, "bad\n")


def test_time_is_up_kills_grandchildren_too_and_shows_the_output():
    grandchild = "import time; time.sleep(60)"
    child = (
        "import subprocess, sys\n"
        f"process = subprocess.Popen([sys.executable, '-c', {grandchild!r}], start_new_session=True)\n"
        "print(process.pid, flush=True)\nprocess.wait()"
    )
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        run_command([sys.executable, "-c", child], timeout_s=3)
    assert time.monotonic() - started < 40
    pid = int(caught.value.stdout)
    assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
