from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.launchers.selection import select_launcher
from accel_launch.launchers.tpu_pod import TPUPodLauncher
from accel_state.errors import ConfigError

POD = {"tpu": "true", "tpu_cluster": "true", "tpu_name": "pod"}


def planned(request_for, *, flags=POD, **rest):
    request = request_for("train.py", "--lr", "1 2", flags=flags, **rest)
    launcher = select_launcher(request)
    assert launcher.name == "tpu-pod"
    return launcher.plan(request)


def line_of(plan) -> str:
    """Return what the first machine is to run."""
    argv = plan.processes[0].argv
    return argv[argv.index("--command") + 1]


def test_the_exact_command(request_for):
    (process,) = planned(request_for, flags=POD | {"tpu_zone": "us-central1-a"}).processes
    assert process.argv == (
        *("gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--zone", "us-central1-a", "--command"),
        "cd /srv && python3 -m accel_launch launch --no_tpu_cluster --tpu -- train.py --lr '1 2'",
        *("--worker", "all"),
    )
    assert dict(process.environ) == {}


def test_sudo_and_variables_precede_the_launch(request_for):
    plan = planned(request_for, flags=POD | {"tpu_use_sudo": "true", "env": "A=1,B=x y"})
    assert line_of(plan).startswith("cd /srv && sudo env A=1 'B=x y' python3 -m accel_launch launch ")


def test_machines_that_are_named_get_a_command_each(request_for):
    plan = planned(
        request_for, flags={"tpu": "true", "tpu_cluster": "true", "tpu_vm": "a,b", "tpu_zone": "z"}
    )
    heads = [process.argv[: process.argv.index("--command")] for process in plan.processes]
    assert heads == [("gcloud", "compute", "ssh", name, "--zone", "z") for name in ("a", "b")]
    assert [process.host for process in plan.processes] == ["a", "b"]


def test_what_file_and_environment_set_here_is_set_there(request_for):
    config = {
        "distributed_type": "XLA",
        "tpu_use_cluster": True,
        "tpu_name": "pod",
        "mixed_precision": "bf16",
        "num_processes": 8,
        "main_training_function": "train",
        "downcast_bf16": "yes",
    }
    environ = {"OMP_NUM_THREADS": "3", "CUDA_VISIBLE_DEVICES": "1", "ACCELERATE_DEBUG_MODE": "true"}
    words = shlex.split(line_of(planned(request_for, flags={}, config=config, environ=environ)))
    assert set(words[words.index("launch") + 1 : words.index("--")]) == {
        "--no_tpu_cluster",
        "--tpu",
        "--num_processes=8",
        "--mixed_precision=bf16",
        "--downcast_bf16",
        "--main_training_function=train",
        "--debug",
    }


def test_the_machine_of_a_pod_runs_its_own_ranks(request_for, monkeypatch, capsys, tmp_path):
    """What it gets is a command line of ours that starts no other machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "train.py").touch()
    words = shlex.split(line_of(planned(request_for, flags=POD | {"mixed_precision": "bf16"})))
    told = words[words.index("launch") :]
    assert main([told[0], "--dry-run", *told[1:]]) == 0
    assert "launcher     tpu\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("tpu_name", "--command=rm"),
        ("tpu_name", "user@-oProxyCommand"),
        ("tpu_zone", "-z"),
        ("tpu_vm", "--command=rm"),
    ],
)
def test_a_name_is_no_option_of_gcloud(request_for, flag, value):
    flags = {"tpu": "true", "tpu_cluster": "true", "tpu_name": "pod", flag: value}
    with pytest.raises(ConfigError, match=f"is `{value}`, which `gcloud` would take for an option"):
        TPUPodLauncher().plan(request_for(flags=flags))


def test_without_a_name_there_is_no_pod(request_for):
    with pytest.raises(ConfigError, match="`--tpu_cluster` needs `--tpu_name`"):
        TPUPodLauncher().plan(request_for(flags={"tpu": "true", "tpu_cluster": "true"}))


@pytest.fixture
def gcloud(tmp_path, monkeypatch) -> Path:
    """A program of that name that writes its arguments, one per line, to stdout, and ends with 7."""
    program = tmp_path / "bin" / "gcloud"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nfor word in "$@"; do echo "<$word>"; done\nexit 7\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    return program


ARGUMENTS = ("--tpu", "--tpu_cluster", "--tpu_name", "pod", "--env", "A=$(id)")


def test_it_is_run_without_a_shell_here_and_its_exit_code_handed_on(gcloud, tmp_path, capfd):
    assert main(["launch", *ARGUMENTS, "train.py"]) == 7
    command = (
        f"cd {tmp_path} && env 'A=$(id)' python3 -m accel_launch launch --no_tpu_cluster --tpu -- train.py"
    )
    out = capfd.readouterr().out
    assert f"<--command>\n<{command}>\n<--worker>\n<all>\n" in out


def test_debug_shows_the_command(gcloud, tmp_path, capfd):
    main(["launch", *ARGUMENTS, "--debug", "train.py"])
    launch = "python3 -m accel_launch launch --no_tpu_cluster --tpu --debug -- train.py"
    command = f"cd {tmp_path} && env 'A=$(id)' {launch}"
    argv = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "pod", "--command", command, "--worker", "all"]
    assert f"Running {shlex.join(argv)}\n" in capfd.readouterr().err


def test_without_gcloud_a_hint_is_given(gcloud, monkeypatch, capsys):
    gcloud.unlink()
    assert main(["launch", *ARGUMENTS, "train.py"]) == 1
    assert (
        "`--tpu_cluster` needs the program `gcloud`, which is not installed here" in capsys.readouterr().err
    )
