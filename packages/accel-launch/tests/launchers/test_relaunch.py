from __future__ import annotations

import pytest

from accel_launch.launchers.relaunch import relaunch_command


def test_flags_come_from_flags_and_the_file_is_named(request_for):
    request = request_for(
        flags={"use_cpu": "true", "num_processes": "2"}, config={"mixed_precision": "bf16"}, is_quiet=True
    )
    assert relaunch_command(request, without={"num_processes"}) == (
        *("python", "-m", "accel_launch", "launch", "--config_file", "/srv/config.yaml"),
        *("--cpu", "-q", "--", "train.py"),
    )


def test_where_neither_file_nor_environment_is_flags_say_it_all(request_for):
    request = request_for(
        flags={"num_processes": "2"},
        config={"mixed_precision": "bf16", "use_cpu": False},
        environ={"FSDP_VERSION": "2", "MASTER_PORT": "1"},
        kind="module",
    )
    assert relaunch_command(request, interpreter=["python3"], is_self_contained=True) == (
        *("python3", "-m", "accel_launch", "launch", "--num_processes=2", "--mixed_precision=bf16"),
        *("--fsdp_version=2", "-m", "--", "train.py"),
    )


@pytest.mark.parametrize(
    "given",
    [
        {"flags": {"launcher": "slurm"}},
        {"environ": {"ACCEL_LAUNCHER": "slurm"}},
        {"config": {"launcher": "slurm"}},
    ],
)
def test_the_other_launch_chooses_a_launcher_of_its_own(request_for, given):
    """By the same name, the job that a launch submits would submit another one."""
    assert relaunch_command(request_for(**given))[-3:] == ("--launcher=auto", "--", "train.py")
