"""`mpirun … accel launch script`: the launcher is a task, and becomes one rank or starts those of its machine."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from accel_launch.launchers.selection import select_launcher
from accel_launch.request import flags_of_task, variables_of_outer_run
from accel_launch.unused_settings import unused_settings
from accel_state.errors import ConfigError

OPEN_MPI = (
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)
MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
AS_RANK = {"num_processes": "1", "num_machines": "1"}


def task(names, rank: int, world_size: int, local_rank: int, local_world_size: int) -> dict[str, str]:
    numbers = map(str, (rank, world_size, local_rank, local_world_size))
    return dict(zip(names, numbers, strict=True))


def request_in(request_for, environ, given=None, **rest):
    flags = given or {}
    return request_for(flags=flags | flags_of_task(environ, flags), environ=environ, **rest)


@pytest.mark.parametrize("names", [OPEN_MPI, MPICH])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"use_cpu": "true", "num_processes": "4"},
        {"use_fsdp": "true"},
        {"tpu": "true"},
    ],
)
def test_one_of_several_tasks_starts_one_process_that_is_its_rank(request_for, names, given):
    request = request_in(request_for, task(names, 3, 4, 3, 4), given, gpus=("0", "1", "2", "3"))
    launcher = select_launcher(request)
    (process,) = launcher.plan(request).processes
    assert launcher.name == "single"
    assert (process.environ["MASTER_ADDR"], process.environ["MASTER_PORT"]) == ("127.0.0.1", "29500")
    assert not process.environ.keys() & {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    assert unused_settings(request) == []


@pytest.mark.parametrize("names", [OPEN_MPI, MPICH])
def test_a_rank_that_is_left_from_another_run_is_refused(names):
    around = task(names, 0, 2, 0, 2)
    with pytest.raises(ConfigError, match="`RANK` is 3 and `WORLD_SIZE` is 8, but .* rank 0 of 2"):
        flags_of_task(around | {"RANK": "3", "WORLD_SIZE": "8"}, {})


def test_a_rank_by_hand_that_mpirun_agrees_with_is_fine():
    around = task(OPEN_MPI, 1, 2, 1, 2)
    assert flags_of_task(around | {"RANK": "1", "WORLD_SIZE": "2"}, {}) == {}


def test_ranks_share_the_cores(request_for):
    request = request_in(request_for, task(OPEN_MPI, 0, 2, 0, 2))
    assert select_launcher(request).plan(request).processes[0].environ["OMP_NUM_THREADS"] == "4"


def test_on_several_machines_the_rendezvous_must_be_set(request_for):
    environ = task(OPEN_MPI, 3, 4, 1, 2)
    with pytest.raises(ConfigError, match="`mpirun` starts on several machines need `--main_process_ip`"):
        request = request_in(request_for, environ)
        select_launcher(request).plan(request)
    given = {"master_addr": "10.0.0.1", "master_port": "1234"}
    for request in (
        request_in(request_for, environ, given),
        request_in(request_for, environ | {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "1234"}),
        request_in(request_for, environ, config={"main_process_ip": "10.0.0.1", "main_process_port": 1234}),
    ):
        (process,) = select_launcher(request).plan(request).processes
        assert (process.environ["MASTER_ADDR"], process.environ["MASTER_PORT"]) == ("10.0.0.1", "1234")
        assert unused_settings(request) == []


def test_another_number_of_processes_is_refused():
    with pytest.raises(ConfigError, match="`--num_processes` is 8, but this launcher is one of 4 tasks"):
        flags_of_task(task(OPEN_MPI, 0, 4, 0, 4), {"num_processes": "8"})


def test_one_task_per_machine_is_a_launcher_of_the_ranks_there():
    environ = task(OPEN_MPI, 1, 2, 0, 1) | {"MASTER_ADDR": "10.0.0.1"}
    expected = {"num_machines": "2", "machine_rank": "1", "master_addr": "10.0.0.1", "master_port": "29500"}
    assert flags_of_task(environ, {"num_processes": "8"}) == expected
    assert flags_of_task(environ, {"machine_rank": "0"}) == {}


@pytest.mark.parametrize(
    "extra", [{"TORCHELASTIC_RUN_ID": "x"}, {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}]
)
def test_a_rank_of_a_run_within_is_no_task(extra):
    assert flags_of_task(task(OPEN_MPI, 0, 2, 0, 2) | extra, {}) == {}


def test_one_task_in_all_prints_nothing():
    assert flags_of_task(task(OPEN_MPI, 0, 1, 0, 1), {}) == {}


def test_two_tasks_run_the_script_twice_in_all(tmp_path):
    """As `mpirun -n 2` does it: the same command in two environments."""
    script = tmp_path / "train.py"
    script.write_text("import os; print(os.environ['OMPI_COMM_WORLD_RANK'], os.environ['MASTER_PORT'])")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OMP", "MASTER_"))}
    outputs = []
    for rank in (0, 1):
        done = subprocess.run(
            [sys.executable, "-m", "accel_launch", "launch", "--cpu", "--num_processes", "2", str(script)],
            env=kept | task(OPEN_MPI, rank, 2, rank, 2) | {"HF_HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append(done.stdout)
    assert outputs == ["0 29500\n", "1 29500\n"]


def test_a_launch_within_a_rank_does_not_join_the_outer_run():
    environ = {"TORCHELASTIC_RUN_ID": "x", "RANK": "1", "MASTER_PORT": "29500", "HOME": "/root"}
    assert set(variables_of_outer_run(environ)) == {"TORCHELASTIC_RUN_ID", "RANK", "MASTER_PORT"}


def test_ranks_that_a_scheduler_gave_are_kept():
    assert variables_of_outer_run({"RANK": "1", "WORLD_SIZE": "2"}) == ()
