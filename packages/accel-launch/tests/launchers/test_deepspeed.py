from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from accel_launch.launchers.deepspeed import DeepSpeedLauncher
from accel_launch.plan import LaunchPlan, ProcessPlan
from accel_state.errors import ConfigError, NotAvailableError

TWO = {"num_machines": "2", "num_processes": "8", "use_deepspeed": "true"}


def plan(request_for, *, environ=None, kind="script", **flags):
    flags = TWO | {"deepspeed_hostfile": "hosts"} | flags
    given = {name: value for name, value in flags.items() if value}
    request = request_for("train.py", "--lr", "1", flags=given, environ=environ, kind=kind)
    assert DeepSpeedLauncher().accepts(request)
    return DeepSpeedLauncher().plan(request)


RUNNER = ("python", "-m", "deepspeed.launcher.runner")


@pytest.mark.parametrize(
    ("way", "counts"),
    [
        ("pdsh", ("--num_nodes=2", "--num_gpus=4")),
        ("slurm", ("--num_nodes=2", "--num_gpus=4")),
        ("openmpi", ()),
        ("mvapich", ()),
        ("mpich", ("--launcher_args=-genvnone",)),
    ],
)
def test_each_way_is_named_to_the_runner_with_the_flags_it_takes(request_for, way, counts):
    (process,) = plan(request_for, deepspeed_multinode_launcher=way, master_addr="10.0.0.1").processes
    assert process.argv == (
        *RUNNER,
        f"--launcher={way}",
        "--hostfile=hosts",
        *counts,
        "--master_addr=10.0.0.1",
        "--master_port=29500",
        "--no_local_rank",
        "train.py",
        "--lr",
        "1",
    )


@pytest.mark.parametrize(
    ("way", "told"),
    [("pdsh", False), ("mpich", False), ("openmpi", True), ("mvapich", True), ("slurm", True)],
)
def test_ranks_learn_where_they_meet_if_the_runner_does_not_set_it(request_for, way, told):
    made = plan(request_for, deepspeed_multinode_launcher=way, master_addr="10.0.0.1", master_port="29511")
    lines = made.options["forwarded"].splitlines()
    assert ("MASTER_ADDR=10.0.0.1" in lines) is told
    assert ("MASTER_PORT=29511" in lines) is told


def test_without_ssh_each_machine_names_which_it_is(request_for):
    flags = {"deepspeed_multinode_launcher": "nossh", "machine_rank": "1", "master_addr": "10.0.0.1"}
    made = plan(request_for, environ={"MLFLOW_TRACKING_TOKEN": "t"}, **flags)
    assert made.processes[0].argv[3:6] == ("--no_ssh", "--node_rank=1", "--hostfile=hosts")
    assert (made.options["forwarded"], made.processes[0].unset) == ("", ())


@pytest.mark.parametrize(("kind", "flag"), [("module", "--module"), ("executable", "--no_python")])
def test_modules_and_programs(request_for, kind, flag):
    assert plan(request_for, kind=kind).processes[0].argv[-4:] == (flag, "train.py", "--lr", "1")


@pytest.mark.parametrize(("which", "flag"), [("inclusion", "--include"), ("exclusion", "--exclude")])
def test_filters_take_the_place_of_numbers(request_for, which, flag):
    argv = plan(request_for, **{f"deepspeed_{which}_filter": "h1:0,1@h2"}).processes[0].argv
    assert f"{flag}=h1:0,1@h2" in argv
    assert not any(word.startswith("--num_") for word in argv)


def test_only_what_is_on_the_list_is_forwarded(request_for):
    secrets = {"AWS_SECRET_ACCESS_KEY": "s3cret", "HF_TOKEN": "s3cret", "MLFLOW_TRACKING_PASSWORD": "s3cret"}
    environ = secrets | {"PATH": "/bin", "NCCL_DEBUG": "INFO", "DS_ACCELERATOR": "cpu"}
    made = plan(request_for, environ=environ, mixed_precision="bf16")
    lines = set(made.options["forwarded"].splitlines())
    assert {"PATH=/bin", "NCCL_DEBUG=INFO", "DS_ACCELERATOR=cpu", "ACCELERATE_MIXED_PRECISION=bf16"} <= lines
    assert "s3cret" not in str(made.to_dict())
    assert made.processes[0].unset == ("MLFLOW_TRACKING_PASSWORD",)  # which the runner would send by itself


def test_variables_of_libraries_are_forwarded_but_for_secrets_and_what_a_shell_reads(request_for):
    environ = {"NCCL_IB_GID_INDEX": "3", "WANDB_PROJECT": "p", "WANDB_API_KEY": "s", "WANDB_NOTES": "a $HOME"}
    options = plan(request_for, environ=environ).options
    lines = set(options["forwarded"].splitlines())
    assert {"NCCL_IB_GID_INDEX=3", "WANDB_PROJECT=p"} <= lines
    assert not any(line.startswith(("WANDB_API_KEY", "WANDB_NOTES")) for line in lines)
    assert options["held_back"] == "WANDB_API_KEY,WANDB_NOTES"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"deepspeed_hostfile": ""}, "needs `--deepspeed_hostfile`"),
        ({"deepspeed_inclusion_filter": "a", "deepspeed_exclusion_filter": "b"}, "cannot both be given"),
        (
            {"deepspeed_multinode_launcher": "openmpi", "deepspeed_inclusion_filter": "a"},
            "`openmpi` of DeepSpeed knows no filters: it uses all of its hostfile",
        ),
        (
            {"deepspeed_multinode_launcher": "openmpi"},
            "does not find out where ranks meet. Give `--main_process",
        ),
        (
            {"deepspeed_multinode_launcher": "nossh"},
            "does not find out where ranks meet. Give `--main_process",
        ),
    ],
)
def test_what_the_runner_cannot_do_is_refused(request_for, flags, message):
    with pytest.raises(ConfigError, match=message):
        plan(request_for, **flags)


def test_slurm_runs_scripts_only(request_for):
    with pytest.raises(ConfigError, match="`slurm` of DeepSpeed runs scripts only"):
        plan(request_for, kind="module", deepspeed_multinode_launcher="slurm", master_addr="h")


@pytest.mark.parametrize("value", ["/a$(touch x)", '/a"b', "/a`id`", "/a\\"])
def test_a_value_that_a_shell_would_read_is_refused(request_for, value):
    with pytest.raises(ConfigError, match="`HF_HOME` is .* would let a shell on the other machines read it"):
        plan(request_for, environ={"HF_HOME": value})


@pytest.fixture
def runner(tmp_path, monkeypatch):
    """A stand-in for the package, and a plan that shows what DeepSpeed's runner would see of the variables."""
    (tmp_path / "deepspeed.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    code = (
        "import os, stat; file = os.environ['DS_ENV_FILE']; "
        "open('seen', 'w').write(oct(stat.S_IMODE(os.stat(file).st_mode)) + chr(10) + open(file).read() + file)"
    )
    (tmp_path / "hosts").write_text("here slots=1\n")
    return LaunchPlan(
        "deepspeed",
        (ProcessPlan((sys.executable, "-c", code), tmp_path),),
        num_ranks=1,
        options={"forwarded": "A=1\n", "hostfile": "hosts"},
    )


def test_a_hostfile_that_is_missing_is_refused_since_the_runner_would_train_only_here(runner, tmp_path):
    (tmp_path / "hosts").unlink()
    with pytest.raises(
        ConfigError, match=r"`--deepspeed_hostfile` is `/.*/hosts`, which does not exist\. Write"
    ):
        DeepSpeedLauncher().run(runner)
    assert not (tmp_path / "seen").exists()


def test_the_forwarded_variables_lie_in_a_private_file_only_while_it_runs(runner, tmp_path):
    assert DeepSpeedLauncher().run(runner) == 0
    *seen, file = (tmp_path / "seen").read_text().splitlines()
    assert seen == ["0o600", "A=1"]
    assert not Path(file).exists()


def test_what_a_person_wrote_for_the_runner_is_forwarded_too(runner, tmp_path):
    (tmp_path / ".deepspeed_env").write_text("B=2\n\nC=a=b")
    assert DeepSpeedLauncher().run(runner) == 0
    assert (tmp_path / "seen").read_text().splitlines()[1:-1] == ["A=1", "B=2", "C=a=b"]


def test_what_is_withheld_is_named(runner, capsys):
    process = replace(runner.processes[0], unset=("MLFLOW_TRACKING_TOKEN",))
    held = replace(runner, processes=(process,), options={**runner.options, "held_back": "HF_TOKEN"})
    assert DeepSpeedLauncher().run(held) == 0
    told = capsys.readouterr().err
    assert (
        "`MLFLOW_TRACKING_TOKEN`, `HF_TOKEN` may hold a secret, or what a shell would read, and stays" in told
    )
    assert "write it into `.deepspeed_env`" in told


def test_a_package_that_is_missing_is_named(runner, monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(NotAvailableError, match="needs the package `deepspeed`"):
        DeepSpeedLauncher().run(runner)
