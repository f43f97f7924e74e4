from __future__ import annotations

from accel_launch.launchers.restated import restated


def test_flags_come_from_flags_and_the_file_is_named(request_for):
    request = request_for(
        flags={"use_cpu": "true", "num_processes": "2"}, config={"mixed_precision": "bf16"}, is_quiet=True
    )
    assert restated(request, without={"num_processes"}) == (
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
    assert restated(request, interpreter=["python3"], is_self_contained=True) == (
        *("python3", "-m", "accel_launch", "launch", "--num_processes=2", "--mixed_precision=bf16"),
        *("--fsdp_version=2", "-m", "--", "train.py"),
    )
