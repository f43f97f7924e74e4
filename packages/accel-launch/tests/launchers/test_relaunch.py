from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from accel_launch.cli import main
from accel_launch.launchers.deepspeed import DeepSpeedLauncher
from accel_launch.launchers.kubernetes import KubernetesLauncher
from accel_launch.launchers.mpi import IMPLEMENTATIONS, MPILauncher, with_options_of
from accel_launch.launchers.ray import RayLauncher, _order
from accel_launch.launchers.relaunch import relaunch_command
from accel_launch.launchers.slurm import batch_script
from accel_launch.launchers.tpu_pod import TPUPodLauncher
from accel_launch.remote_protocol import Order
from accel_state.errors import ConfigError

HERE = {"MY_TOKEN": "hush", "NCCL_DEBUG": "INFO"}
TELL = "import os; print(os.environ['MY_TOKEN'], os.environ['A'], flush=True)\n"
FLAGS = ("--env", "MY_TOKEN", "--env", "A=1,2")


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.setenv("MY_TOKEN", "hush")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TELL)
    return tmp_path


@pytest.mark.parametrize("num_processes", ["1", "2"])
def test_ranks_here_have_them(capfd, num_processes):
    assert main(["launch", "--cpu", "--num_processes", num_processes, *FLAGS, "train.py"]) == 0
    assert capfd.readouterr().out.splitlines() == ["hush 1,2"] * int(num_processes)


@pytest.mark.parametrize("launcher", ["single", "local", "elastic", "mpi", "slurm", "ray"])
def test_no_description_shows_their_values(capfd, launcher):
    num_processes = "1" if launcher == "single" else "2"
    flags = ["--cpu", "--num_processes", num_processes, "--launcher", launcher, "--env", "MY_TOKEN"]
    if launcher == "elastic":
        flags += ["--num_machines", "2", "--machine_rank", "0", "--main_process_ip", "10.0.0.1"]
    for form in ([], ["--json"]):
        assert main(["launch", "--dry-run", *form, *flags, "train.py"]) == 0
        out, err = capfd.readouterr()
        assert "hush" not in out + err
        assert "MY_TOKEN" in out


def test_the_config_file_names_them_too(workplace, capfd):
    (workplace / "c.yaml").write_text("use_cpu: true\nenv: [MY_TOKEN, A=3]\n")
    assert main(["launch", "--config_file", "c.yaml", "train.py"]) == 0
    assert capfd.readouterr().out == "hush 3\n"
    assert main(["config", "show", "--config_file", "c.yaml"]) == 0
    assert "hush" not in capfd.readouterr().out


def test_one_that_is_not_set_here_is_refused(capsys):
    assert main(["launch", "--cpu", "--env", "NOT_SET_HERE", "train.py"]) == 1
    assert "`--env NOT_SET_HERE` takes the value of `NOT_SET_HERE` from here" in capsys.readouterr().err


def test_a_batch_job_takes_them_from_the_environment_of_sbatch(workplace, monkeypatch, capfd):
    program = workplace / "sbatch"
    program.write_text(f"#!/bin/sh\ncat > {workplace}/job; echo $MY_TOKEN > {workplace}/seen; echo 42\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workplace}:/usr/bin:/bin")
    assert main(["launch", "--cpu", "--slurm", *FLAGS, "train.py"]) == 0
    assert (workplace / "seen").read_text() == "hush\n"
    job = (workplace / "job").read_text()
    assert "--env=MY_TOKEN --env=A " in job
    assert "hush" not in job


def test_a_job_has_those_of_the_config_file_from_there(request_for):
    request = request_for(flags={"slurm": "true"}, config={"tpu_env": ["A=1"]})
    assert "--env" not in batch_script(request)


def mpi_plan(name, request):
    plan = MPILauncher().plan(request).with_private(request.named_variables())
    return with_options_of(IMPLEMENTATIONS[name], plan, environ=HERE)


@pytest.mark.parametrize(("name", "told"), [("Open MPI", ["-x", "MY_TOKEN"]), ("MPICH", [])])
def test_mpirun_forwards_names_only(request_for, name, told):
    flags = {"use_mpirun": "true", "use_cpu": "true", "num_processes": "2", "env": "MY_TOKEN"}
    (process,) = mpi_plan(name, request_for(flags=flags, environ=HERE)).processes
    at = process.argv.index("MY_TOKEN") - 1 if told else 0
    assert list(process.argv[at : at + len(told)]) == told
    assert "hush" not in process.argv


def test_an_mpirun_that_writes_values_on_command_lines_gets_no_secrets(request_for):
    machines = {"mpirun_hostfile": "hosts", "num_machines": "2", "num_processes": "2", "master_addr": "a"}
    flags = {"use_mpirun": "true", "use_cpu": "true"} | machines
    given = request_for(flags=flags | {"env": "A=1"}, environ=HERE)
    (process,) = mpi_plan("MPICH", given).processes
    assert process.argv[process.argv.index("A") :][:2] == ("A", "1")
    with pytest.raises(ConfigError, match="`--env MY_TOKEN` looks like a secret, but this `mpirun` would"):
        mpi_plan("MPICH", request_for(flags=flags | {"env": "MY_TOKEN"}, environ=HERE))


def test_deepspeeds_runner_gets_none(request_for):
    flags = {
        "use_deepspeed": "true",
        "num_machines": "2",
        "num_processes": "2",
        "deepspeed_hostfile": "hosts",
    }
    with pytest.raises(ConfigError, match="writes variables on command lines"):
        DeepSpeedLauncher().plan(request_for(flags=flags | {"env": "A=1"}))


def test_actors_on_ray_have_them(request_for):
    request = request_for(flags={"launcher": "ray", "num_processes": "2", "env": "MY_TOKEN"}, environ=HERE)
    plan = RayLauncher().plan(request).with_private(request.named_variables())
    order = Order.decode(_order(plan).splitlines()[1])
    assert [process.environ["MY_TOKEN"] for process in order.processes] == ["hush"] * 2


def test_a_manifest_holds_no_secrets(request_for):
    flags = {"launcher": "kubernetes", "kubernetes_image": "i", "use_cpu": "true"}
    request = request_for(flags=flags | {"env": "NCCL_DEBUG,A=1"}, environ=HERE)
    manifest = KubernetesLauncher().plan(request).document
    assert {("A", "1"), ("NCCL_DEBUG", "INFO")} <= set(re.findall(r"name: (\w+)\n *value: '?(\w+)", manifest))
    assert "--env" not in manifest
    with pytest.raises(ConfigError, match="name that with `--kubernetes_secrets`"):
        KubernetesLauncher().plan(request_for(flags=flags | {"env": "MY_TOKEN"}, environ=HERE))
    from_cluster = {"env": "MY_TOKEN", "kubernetes_secrets": "MY_TOKEN=store:key"}
    manifest = KubernetesLauncher().plan(request_for(flags=flags | from_cluster, environ=HERE)).document
    assert "MY_TOKEN" in manifest
    assert "hush" not in manifest


def test_a_pod_of_tpus_gets_no_secrets(request_for):
    flags = {"tpu": "true", "tpu_cluster": "true", "tpu_name": "pod"}
    with pytest.raises(ConfigError, match="would be on the command lines of `gcloud`"):
        TPUPodLauncher().plan(request_for(flags=flags | {"env": "MY_TOKEN"}, environ=HERE))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_command_line_shows_them_while_they_run(workplace, capfd):
    (workplace / "train.py").write_text(
        "import os, pathlib\n"
        "lines = [p.read_bytes() for p in pathlib.Path('/proc').glob('[0-9]*/cmdline') if p.exists()]\n"
        "print(sum(os.environ['MY_TOKEN'].encode() in line for line in lines), flush=True)\n"
    )
    assert main(["launch", "--cpu", "--num_processes", "2", "--env=MY_TOKEN", "train.py"]) == 0
    assert capfd.readouterr().out == "0\n0\n"


def test_flags_come_from_flags_and_the_file_is_named(request_for):
    request = request_for(
        flags={"use_cpu": "true", "num_processes": "2"}, config={"mixed_precision": "bf16"}, is_quiet=True
    )
    assert relaunch_command(request, without={"num_processes"}) == (
        *("python", "-m", "accel_launch", "launch", "--config_file", "/srv/config.yaml"),
        *("--cpu", "-q", "--", "train.py"),
    )


def test_where_neither_file_nor_environment_is_flags_set_everything(request_for):
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
def test_the_other_launch_chooses_a_separate_launcher(request_for, given):
    """By the same name, the job that a launch submits would submit another one."""
    assert relaunch_command(request_for(**given))[-3:] == ("--launcher=auto", "--", "train.py")


# By names of any case, and by a password in an address whatever the name is.
SECRETS = {
    "HF_TOKEN": "SECRET_0",
    "WANDB_API_KEY": "SECRET_1",
    "HF_ENDPOINT": "https://user:SECRET_2@host",
    "WANDB_BASE_URL": "http://:SECRET_3@host:8080/path",
    "WANDB_PASSWD": "SECRET_4",
    "HF_PASS": "SECRET_5",
    "NCCL_AUTH": "SECRET_6",
    "HF_hub_token": "SECRET_7",
    "TORCH_CREDS": "SECRET_8",
    "WANDB_COOKIE": "SECRET_9",
    "HF_DSN": "SECRET_10",
    "GLOO_PWD": "SECRET_11",
    "UCX_SECRET": "SECRET_12",
    "FI_Password": "SECRET_13",
}
HARMLESS = {"NCCL_DEBUG": "INFO", "HF_HUB_URL": "http://host:8080/a:b", "WANDB_DIR": "ssh://git@host/x"}
DATABASE = "postgres://user:SECRET_14@host"
LAUNCHES = {
    "deepspeed": ("--use_deepspeed", "--num_machines=2", "--deepspeed_hostfile=hosts"),
    "kubernetes": ("--launcher=kubernetes", "--kubernetes_image=i:1"),
    "local": (),
    "mpi": ("--use_mpirun",),
    "ray": ("--launcher=ray",),
    "slurm": ("--slurm",),
    "ssh": ("--hosts=a,b",),
    "tpu-pod": ("--tpu", "--tpu_cluster", "--tpu_name=n", "--tpu_zone=z"),
}
SHOWS_HARMLESS = {"deepspeed", "kubernetes", "ray"}


@pytest.fixture
def secrets(workplace, monkeypatch):
    (workplace / "hosts").write_text("a slots=1\nb slots=1\n")
    for name, value in (SECRETS | HARMLESS).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DB_URL", DATABASE)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("launcher", LAUNCHES)
def test_no_launch_shows_a_secret_of_the_shell(capfd, launcher):
    flags = ["--num_processes=2", *LAUNCHES[launcher]]
    flags += ["--cpu"] if launcher not in ("deepspeed", "tpu-pod") else []
    for form in ([], ["--json"]):
        assert main(["launch", "--dry-run", *form, *flags, "train.py"]) == 0
        out, err = capfd.readouterr()
        shown = [line for line in (out + err).splitlines() if "SECRET_" in line]
        assert shown == []
    assert ("http://host:8080/a:b" in out) == (launcher in SHOWS_HARMLESS)


@pytest.mark.usefixtures("secrets")
@pytest.mark.parametrize("launcher", ["kubernetes", "tpu-pod"])
def test_an_address_with_a_password_is_refused_where_others_would_see_it(capfd, launcher):
    flags = ["--num_processes=2", *LAUNCHES[launcher], *(["--cpu"] if launcher == "kubernetes" else [])]
    assert main(["launch", "--dry-run", *flags, "--env=DB_URL", "train.py"]) == 1
    out, err = capfd.readouterr()
    assert "`--env DB_URL` looks like a secret, but" in err
    assert "SECRET_" not in out + err


@pytest.mark.usefixtures("secrets")
def test_mpirun_of_hydra_has_no_secret_on_its_command_line(workplace, monkeypatch):
    program = workplace / "mpirun"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "HYDRA build" && exit\necho "$@" > {workplace}/seen\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{workplace}:/usr/bin:/bin")
    assert main(["launch", "--cpu", "--use_mpirun", "--num_processes=2", "train.py"]) == 0
    seen = (workplace / "seen").read_text()
    assert "SECRET_" not in seen
    assert "http://host:8080/a:b" in seen


def test_the_directory_of_the_shell_is_no_secret(request_for):
    flags = {"launcher": "kubernetes", "kubernetes_image": "i", "use_cpu": "true", "env": "PWD,OLDPWD"}
    request = request_for(flags=flags, environ={"PWD": "/a", "OLDPWD": "/b"})
    manifest = KubernetesLauncher().plan(request).document
    assert dict(re.findall(r"name: (\w*PWD)\n *value: (\S+)", manifest)) == {"PWD": "/a", "OLDPWD": "/b"}
