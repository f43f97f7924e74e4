from __future__ import annotations

import pytest

from accel_launch.cli import main
from accel_launch.launchers.local import at_port
from accel_launch.launchers.mpi import IMPLEMENTATIONS, MPILauncher, implementation_of, with_options_of
from accel_launch.processes.parent_death import tied_to_starter
from accel_state.errors import ConfigError, NotAvailableError

RANK = tied_to_starter(("python", "-u", "train.py", "--lr", "1"))
VARIABLES = {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "4"}
MACHINES = {"mpirun_hostfile": "hosts", "num_machines": "2", "num_processes": "4", "master_addr": "10.0.0.1"}


def plan(request_for, name, environ=None, **flags):
    flags = {"use_mpirun": "true", "use_cpu": "true", "num_processes": "2"} | flags
    request = request_for("train.py", "--lr", "1", flags=flags, environ=environ)
    made = MPILauncher().plan(request)
    return with_options_of(IMPLEMENTATIONS[name], at_port(made, made.port or 4242), environ=environ or {})


def test_takes_what_is_to_be_started_by_mpirun(request_for):
    assert MPILauncher().accepts(request_for(flags={"use_mpirun": "true"}))
    assert not MPILauncher().accepts(request_for())


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs to ...", "Open MPI"),
        ("HYDRA build details:\n    Version: 4.0.2", "MPICH"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.11", "Intel MPI"),
    ],
)
def test_the_installed_one_is_known_by_its_version(version, name):
    assert implementation_of(version) is IMPLEMENTATIONS[name]


def test_another_is_refused_by_name():
    with pytest.raises(NotAvailableError, match="says it is `MyMPI 1`, .* Open MPI, Intel MPI"):
        implementation_of("MyMPI 1\nmore")


def test_open_mpi_forwards_names(request_for):
    (process,) = plan(request_for, "Open MPI").processes
    names = [word for name in [*VARIABLES, "MASTER_PORT"] for word in ("-x", name)]
    head = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "-n", "2", "--oversubscribe"]
    assert list(process.argv[:7]) == head
    assert sorted(process.argv[7 : 7 + len(names)]) == sorted(names)
    assert process.argv[7 + len(names) :] == RANK
    assert dict(process.environ) == VARIABLES | {"MASTER_PORT": "4242"}


@pytest.mark.parametrize("name", ["MPICH", "Intel MPI", "MVAPICH"])
def test_the_others_forward_values_and_would_otherwise_send_everything(request_for, name):
    made = plan(request_for, name, **MACHINES)
    (process,) = made.processes
    head = ("mpirun", "-n", "4", "-f", "hosts", "-ppn", "2")
    assert process.argv[: len(head)] == head
    assert process.argv[-len(RANK) :] == RANK
    words = process.argv[len(head) : -len(RANK)]
    assert words[0] == "-genvnone"
    assert set(words[1::3]) == {"-genv"}
    forwarded = dict(zip(words[2::3], words[3::3], strict=True))
    assert forwarded == VARIABLES | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
    assert made.port == 29500


@pytest.mark.parametrize("name", IMPLEMENTATIONS)
def test_of_the_environment_a_list_is_forwarded_and_no_secret(request_for, name):
    environ = {"WANDB_API_KEY": "secret", "NCCL_DEBUG": "INFO"}
    (process,) = plan(request_for, name, environ, **MACHINES).processes
    assert "NCCL_DEBUG" in process.argv
    assert "WANDB_API_KEY" not in process.argv


def test_workers_of_oneccl_are_a_variable(request_for):
    (process,) = plan(request_for, "MPICH", mpirun_ccl="4").processes
    assert process.environ["CCL_WORKER_COUNT"] == "4"


def test_several_machines_need_a_meeting_place(request_for):
    with pytest.raises(ConfigError, match="needs `--main_process_ip`"):
        plan(request_for, "Open MPI", **{k: v for k, v in MACHINES.items() if k != "master_addr"})


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_dry_run_needs_no_mpirun_and_a_run_names_what_to_install(workplace, capfd, form):
    launch = ["launch", "--cpu", "--use_mpirun", "--num_processes", "3"]
    assert main([*launch, "--dry-run", *form, "train.py"]) == 0
    assert "`mpirun --version` shows adds its options" in capfd.readouterr().out
    assert main([*launch, "train.py"]) == 1
    assert "Install Open MPI, MPICH or Intel MPI" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("version", "words"),
    [("Open MPI", "-n 3 --hostfile hosts -N 1 -x"), ("HYDRA", "-n 3 -f hosts -ppn 1 -genvnone -genv")],
)
def test_the_installed_mpirun_gets_its_options(workplace, capfd, version, words):
    program = workplace / "bin" / "mpirun"
    program.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" || echo "$MASTER_PORT: $@"\n')
    program.chmod(0o755)
    flags = ["--num_machines=3", "--mpirun_hostfile=hosts", "--main_process_ip=a", "--main_process_port=4242"]
    assert main(["launch", "--cpu", "--use_mpirun", "--num_processes=3", *flags, "train.py"]) == 0
    seen = capfd.readouterr().out
    assert f"{words} " in seen
    assert seen.startswith("4242: ")
    assert seen.rstrip().endswith("train.py")
    assert "MASTER_PORT" in seen


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    """Return a folder with a script, in which `bin` is the only place for programs."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "train.py").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf_home"))
    monkeypatch.chdir(tmp_path)
    return tmp_path
