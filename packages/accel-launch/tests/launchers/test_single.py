from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accel_launch.launchers.single import SingleProcessLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan


@pytest.mark.parametrize(
    ("given", "accepts"),
    [
        ({}, True),
        ({"flags": {"num_processes": "2"}}, False),
        ({"config": {"num_machines": 2}}, False),
        ({"config": {"distributed_type": "FSDP"}}, False),
        ({"gpus": ("0",)}, True),
        ({"gpus": ("0", "1")}, False),
    ],
)
def test_takes_one_plain_process_on_one_machine(request_for, given, accepts):
    assert SingleProcessLauncher().accepts(request_for(**given)) is accepts


def test_plans_the_command_with_output_that_is_not_buffered(request_for):
    request = request_for("train.py", "--num_processes", "3", "--", "-h", flags={"mixed_precision": "bf16"})
    plan = SingleProcessLauncher().plan(request)
    assert plan == LaunchPlan(
        launcher="single",
        processes=(
            ProcessPlan(
                argv=("python", "-u", "train.py", "--num_processes", "3", "--", "-h"),
                cwd=Path("/srv"),
                environ={"ACCELERATE_MIXED_PRECISION": "bf16"},
            ),
        ),
        num_ranks=1,
    )


def run(code: str, **plan: object) -> int:
    process = ProcessPlan((sys.executable, "-c", code), Path.cwd())
    return SingleProcessLauncher().run(LaunchPlan("single", (process,), num_ranks=1, **plan))


@pytest.mark.parametrize(
    ("code", "exit_code", "sentence"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, "error: The script ended with exit code 3.\n"),
        (
            "import os; os.kill(os.getpid(), 9)",
            137,
            "error: The script was killed by SIGKILL.\n",
        ),
        ("import os, signal; signal.raise_signal(signal.SIGINT)", 130, ""),
    ],
)
def test_run_returns_the_exit_code_of_the_script_and_explains_how_it_failed(
    capsys, code, exit_code, sentence
):
    assert run(code) == exit_code
    assert capsys.readouterr().err == sentence


def test_a_quiet_run_prints_nothing(capsys):
    assert run("raise SystemExit(3)", is_quiet=True) == 3
    assert capsys.readouterr().err == ""


def test_run_gives_the_script_its_directory_and_variables(tmp_path):
    process = ProcessPlan(
        (sys.executable, "-c", "import os; open('seen', 'w').write(os.environ['ADDED'])"),
        tmp_path,
        environ={"ADDED": "yes"},
    )
    assert SingleProcessLauncher().run(LaunchPlan("single", (process,), num_ranks=1)) == 0
    assert (tmp_path / "seen").read_text() == "yes"
    assert "ADDED" not in os.environ


def test_a_system_without_fork_runs_one_process(request_for, tmp_path, monkeypatch, capfd):
    monkeypatch.delattr(os, "fork")
    script = tmp_path / "t.py"
    script.write_text("import os, sys; print(os.environ['ACCELERATE_MIXED_PRECISION']); sys.exit(3)")
    request = request_for(str(script), flags={"mixed_precision": "bf16"})
    plan = SingleProcessLauncher().plan(replace(request, cwd=tmp_path, interpreter=(sys.executable,)))
    assert SingleProcessLauncher().run(plan) == 3
    out, err = capfd.readouterr()
    assert (out, err) == ("bf16\n", "error: The script ended with exit code 3.\n")
