from __future__ import annotations

import pytest

from accel_launch.launchers.mpi import IMPLEMENTATIONS, MPILauncher, implementation_of, plan_with
from accel_launch.processes.parent_death import tied_to_starter
from accel_state.errors import ConfigError, NotAvailableError

RANK = tied_to_starter(("python", "-u", "train.py", "--lr", "1"))
VARIABLES = {"ACCELERATE_USE_CPU": "true", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "4"}
MACHINES = {"mpirun_hostfile": "hosts", "num_machines": "2", "num_processes": "4", "master_addr": "10.0.0.1"}


def plan(request_for, name, **flags):
    flags = {"use_mpirun": "true", "use_cpu": "true", "num_processes": "2"} | flags
    return plan_with(IMPLEMENTATIONS[name], request_for("train.py", "--lr", "1", flags=flags))


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
    assert dict(process.environ) == VARIABLES


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
    flags = {"use_mpirun": "true", "use_cpu": "true"} | MACHINES
    request = request_for("train.py", flags=flags, environ=environ)
    (process,) = plan_with(IMPLEMENTATIONS[name], request).processes
    assert "NCCL_DEBUG" in process.argv
    assert "WANDB_API_KEY" not in process.argv


def test_workers_of_oneccl_are_a_variable(request_for):
    (process,) = plan(request_for, "MPICH", mpirun_ccl="4").processes
    assert process.environ["CCL_WORKER_COUNT"] == "4"


def test_several_machines_need_a_meeting_place(request_for):
    with pytest.raises(ConfigError, match="needs `--main_process_ip`"):
        plan(request_for, "Open MPI", **{k: v for k, v in MACHINES.items() if k != "master_addr"})


def test_without_mpirun_the_way_out_is_told(request_for, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotAvailableError, match="Install Open MPI, MPICH or Intel MPI"):
        MPILauncher().plan(request_for(flags={"use_mpirun": "true"}))
