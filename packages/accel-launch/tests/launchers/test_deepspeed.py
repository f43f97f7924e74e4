from __future__ import annotations

import pytest

from accel_launch.launchers.deepspeed import DeepSpeedLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_state.errors import ConfigError

TWO = {"num_machines": "2", "num_processes": "8", "use_deepspeed": "true"}


def plan(request_for, *, environ=None, kind="script", **flags):
    flags = TWO | {"deepspeed_hostfile": "hosts"} | flags
    given = {name: value for name, value in flags.items() if value}
    request = request_for("train.py", "--lr", "1", flags=given, environ=environ, kind=kind)
    assert DeepSpeedLauncher().accepts(request)
    return DeepSpeedLauncher().plan(request)


@pytest.mark.parametrize("way", ["pdsh", "openmpi", "mvapich", "mpich", "slurm"])
def test_each_way_is_named_to_the_runner(request_for, way):
    (process,) = plan(request_for, deepspeed_multinode_launcher=way, master_addr="10.0.0.1").processes
    assert process.argv == (
        "deepspeed",
        f"--launcher={way}",
        "--hostfile=hosts",
        "--num_nodes=2",
        "--num_gpus=4",
        "--master_addr=10.0.0.1",
        "--master_port=29500",
        "train.py",
        "--lr",
        "1",
    )


def test_without_ssh_each_machine_says_which_it_is(request_for):
    flags = {"deepspeed_multinode_launcher": "nossh", "machine_rank": "1", "deepspeed_hostfile": ""}
    assert plan(request_for, **flags).processes[0].argv[1:3] == ("--no_ssh", "--node_rank=1")


@pytest.mark.parametrize(("kind", "flag"), [("module", "--module"), ("executable", "--no_python")])
def test_modules_and_programs(request_for, kind, flag):
    assert plan(request_for, kind=kind).processes[0].argv[-4:] == (flag, "train.py", "--lr", "1")


@pytest.mark.parametrize(("which", "flag"), [("inclusion", "--include"), ("exclusion", "--exclude")])
def test_filters_take_the_place_of_numbers(request_for, which, flag):
    argv = plan(request_for, **{f"deepspeed_{which}_filter": "h1:0,1@h2"}).processes[0].argv
    assert f"{flag}=h1:0,1@h2" in argv
    assert not any(word.startswith("--num_") for word in argv)


def test_only_what_is_on_the_list_is_forwarded(request_for):
    environ = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "s3cret", "PATH": "/bin", "NCCL_DEBUG": "INFO"}
    made = plan(request_for, environ=environ, mixed_precision="bf16")
    lines = made.options["forwarded"].splitlines()
    assert {"PATH=/bin", "NCCL_DEBUG=INFO", "ACCELERATE_MIXED_PRECISION=bf16"} <= set(lines)
    assert "s3cret" not in str(made.to_dict())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"deepspeed_hostfile": ""}, "needs `--deepspeed_hostfile`"),
        ({"deepspeed_inclusion_filter": "a", "deepspeed_exclusion_filter": "b"}, "cannot both be given"),
    ],
)
def test_what_the_runner_cannot_do_is_refused(request_for, flags, message):
    with pytest.raises(ConfigError, match=message):
        plan(request_for, **flags)


def test_the_forwarded_variables_lie_in_a_private_file_only_while_it_runs(tmp_path):
    code = "import os, stat, sys; mode = os.stat('.deepspeed_env').st_mode; sys.exit(stat.S_IMODE(mode) != 0o600)"
    import sys

    process = ProcessPlan((sys.executable, "-c", code), tmp_path)
    made = LaunchPlan("deepspeed", (process,), num_ranks=1, options={"forwarded": "A=1\n"})
    assert DeepSpeedLauncher().run(made) == 0
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".deepspeed_env").write_text("B=2\n")
    with pytest.raises(ConfigError, match="is there already"):
        DeepSpeedLauncher().run(made)
