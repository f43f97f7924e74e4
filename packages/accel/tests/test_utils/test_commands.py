"""Commands as tests of users run them."""

import subprocess
import sys

import psutil
import pytest

from accel.test_utils import commands
from accel.test_utils.commands import SubprocessCallException, execute_subprocess_async, run_command


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_command_gives_back_what_it_printed_and_shows_it(capfd):
    done = execute_subprocess_async(python("import sys; print('a\\nb'); print('c', file=sys.stderr)"))
    assert (done.returncode, done.stdout, done.stderr) == (0, ["a", "b"], ["c"])
    shown = capfd.readouterr()
    assert shown.out.startswith("\nRunning: ")
    assert shown.out.endswith("a\nb\n")
    assert shown.err == "c\n"


def test_a_quiet_command_shows_nothing_and_has_the_environment_that_is_given(tmp_path, capfd):
    file = tmp_path / "script.py"
    file.write_text("import os; print(sorted(set(os.environ) & {'WORD', 'PYTHONPATH'}), os.environ['WORD'])")
    done = execute_subprocess_async([sys.executable, file], env={"WORD": "x"}, quiet=True, echo=False)
    assert done.stdout == ["['WORD'] x"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "end", ["sys.exit(3)", "sys.stderr.flush(); os.kill(os.getpid(), 9)"], ids=["code", "signal"]
)
def test_a_command_that_fails_is_an_error_with_its_standard_error(end):
    code = f"import os, sys; print('the reason', file=sys.stderr); {end}"
    with pytest.raises(RuntimeError, match=r"(?s)failed with exit code (3|-9)\. .*the reason"):
        execute_subprocess_async(python(code), quiet=True)
    with pytest.raises(SubprocessCallException, match="the reason"):
        run_command(python(code))


def test_a_command_that_takes_too_long_is_ended():
    code = "import time; time.sleep(600)"
    with pytest.raises(subprocess.TimeoutExpired):
        execute_subprocess_async(python(code), timeout=0.5, quiet=True)
    assert not [child for child in psutil.Process().children() if code in child.cmdline()]


def test_output_comes_back_only_when_requested(capfd):
    assert run_command(python("print(1)"), return_stdout=True) == "1\n"
    assert run_command(python("print(1)")) is None
    assert capfd.readouterr() == ("", "")


def test_flags_of_a_launch():
    words = commands.get_launch_command(num_processes=2, debug=True, main_process_port=None, name="a b")
    assert words[:4] == [sys.executable, "-m", "accel_launch", "launch"]
    assert words[4:] == ["--num_processes=2", "--debug", "--name=a b"]
    assert f"--num_processes={commands.get_backend()[1]}" in commands.DEFAULT_LAUNCH_COMMAND


def test_each_worker_has_a_port(monkeypatch):
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    assert (commands.pytest_xdist_worker_id(), commands.get_torch_dist_unique_port()) == (0, 29500)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw3")
    assert (commands.pytest_xdist_worker_id(), commands.get_torch_dist_unique_port()) == (3, 29503)
