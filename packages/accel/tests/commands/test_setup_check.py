from __future__ import annotations

import sys

import pytest

from accel.commands import setup_check
from accel.commands.setup_check import CheckError, check_processes
from tools.harness.scripts import run_command, run_script

NAMES = ["processes", "collectives", "random numbers", "loaders", "training"]


def checked_alone(folder):
    return run_script(setup_check.__file__, env={"ACCELERATE_USE_CPU": "true"})


def checked_by_the_command(folder):
    words = ["-m", "accel_launch", "test", "--cpu", "--num_processes=2", "--mixed_precision=bf16"]
    return run_command([sys.executable, *words], env={"HF_HOME": str(folder), "OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(
    ("outcome", "num_processes"),
    [(checked_alone, 1), pytest.param(checked_by_the_command, 2, marks=pytest.mark.engine("long"))],
    ids=["one", "two in bf16"],
    indirect=["outcome"],
)
def test_it_finds_a_good_set_up_good(outcome, num_processes):
    finished = outcome
    assert finished.returncode == 0, finished.stderr
    lines = finished.stdout.splitlines()
    assert [line[7:].partition(":")[0] for line in lines[:-1]] == NAMES
    assert all(line.startswith("ok     ") for line in lines[:-1])
    assert lines[-1] == "This set-up works."
    assert f"{num_processes} process(es) on cpu" in lines[0]


class Confused:
    """A process that does not know that it is the main one."""

    process_index = 0
    num_processes = 1
    is_main_process = False


@pytest.mark.usefixtures("fresh_state")
def test_it_finds_a_set_up_without_a_main_process_bad():
    with pytest.raises(CheckError, match="0 processes have `is_main_process` set"):
        check_processes(Confused())


def test_every_check_names_what_it_holds():
    assert [check.__name__.removeprefix("check_").replace("_", " ") for check in setup_check.CHECKS] == NAMES
    assert all(check.__doc__ for check in setup_check.CHECKS)
