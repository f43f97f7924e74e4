"""Whole environments as launchers leave them, mixed ones included."""

from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.launched_by import PROCESS_ENVIRONMENTS, detect_topology, process_environment
from accel_state.launched_by.detect import PlainEnvironment
from accel_state.topology import Topology

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "1234",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
MVAPICH = {
    "MV2_COMM_WORLD_RANK": "1",
    "MV2_COMM_WORLD_SIZE": "2",
    "MV2_COMM_WORLD_LOCAL_RANK": "1",
    "MV2_COMM_WORLD_LOCAL_SIZE": "2",
}
PMI = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}
SBATCH_SHELL = {
    "SLURM_JOB_ID": "77",
    "SLURM_JOB_NODELIST": "n[01-02]",
    "SLURM_NNODES": "2",
    "SLURM_NTASKS": "4",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
SRUN_TASK = SBATCH_SHELL | {
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[01-02]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
}
# One daemon per node, which is how MPI launchers start themselves inside of a SLURM job.
SRUN_DAEMON = SRUN_TASK | {
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
SRUN_PMI2 = SRUN_TASK | {"PMI_RANK": "3", "PMI_SIZE": "4"}
XLA = {"PJRT_DEVICE": "TPU", "PJRT_LOCAL_PROCESS_RANK": "2", "PJRT_LOCAL_PROCESS_COUNT": "4"}

SLURM_TOPOLOGY = Topology(3, 4, 1, 2, 1, 2, "slurm", "n01", 15000 + 77 * 31)


@pytest.mark.parametrize(
    ("environ", "topology"),
    [
        pytest.param({}, Topology(), id="nothing"),
        pytest.param({"WORLD_SIZE": "1"}, Topology(), id="a world of one"),
        pytest.param(TORCHRUN, Topology(5, 8, 1, 4, 1, 2, "torchrun", "head", 1234), id="torchrun"),
        pytest.param(OPENMPI, Topology(3, 4, 1, 2, 1, 2, "openmpi", None, 29500, True), id="Open MPI"),
        pytest.param(MVAPICH, Topology(1, 2, 1, 2, 0, 1, "mvapich", "127.0.0.1", 29500), id="MVAPICH"),
        pytest.param(PMI, Topology(2, 4, 0, 2, 1, 2, "pmi", None, 29500, True), id="MPICH"),
        pytest.param(SRUN_TASK, SLURM_TOPOLOGY, id="srun"),
        pytest.param(SBATCH_SHELL, Topology(), id="the shell of sbatch"),
        pytest.param(XLA, Topology(2, 4, 2, 4, 0, 1, "xla", None, None), id="XLA"),
        pytest.param(
            TORCHRUN | SRUN_DAEMON,
            Topology(5, 8, 1, 4, 1, 2, "torchrun", "head", 1234),
            id="torchrun in srun",
        ),
        pytest.param(
            TORCHRUN | SBATCH_SHELL,
            Topology(5, 8, 1, 4, 1, 2, "torchrun", "head", 1234),
            id="torchrun in sbatch",
        ),
        pytest.param(
            TORCHRUN | OPENMPI, Topology(5, 8, 1, 4, 1, 2, "torchrun", "head", 1234), id="torchrun in mpirun"
        ),
        pytest.param(
            OPENMPI | SRUN_DAEMON | {"MASTER_ADDR": "n01"},
            Topology(3, 4, 1, 2, 1, 2, "openmpi", "n01", 29500, True),
            id="Open MPI in SLURM",
        ),
        pytest.param(
            PMI | SRUN_DAEMON, Topology(2, 4, 0, 2, 1, 2, "pmi", None, 29500, True), id="MPICH in SLURM"
        ),
        pytest.param(
            MVAPICH | {"PMI_RANK": "1", "PMI_SIZE": "2"},
            Topology(1, 2, 1, 2, 0, 1, "mvapich", "127.0.0.1", 29500),
            id="MVAPICH through Hydra",
        ),
        pytest.param(SRUN_PMI2, SLURM_TOPOLOGY, id="srun with pmi2"),
        pytest.param(
            SRUN_TASK | {"MASTER_ADDR": "chosen", "MASTER_PORT": "4000", "WORLD_SIZE": "4"},
            Topology(3, 4, 1, 2, 1, 2, "slurm", "chosen", 4000),
            id="srun with a chosen meeting point",
        ),
    ],
)
def test_topology(environ, topology):
    assert detect_topology(environ) == topology


@pytest.mark.parametrize(
    ("whole", "rank", "world_size", "local_rank"),
    [
        (TORCHRUN, "RANK", "WORLD_SIZE", "LOCAL_RANK"),
        (OPENMPI, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
        (MVAPICH, "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
        (PMI, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
        (SRUN_TASK, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    ],
    ids=["torchrun", "openmpi", "mvapich", "pmi", "slurm"],
)
class TestWrongValues:
    def test_a_rank_beyond_the_size_names_both_variables(self, whole, rank, world_size, local_rank):
        wrong = whole | {rank: whole[world_size]}
        with pytest.raises(ConfigError, match=f"`{rank}` is .* because `{world_size}` is"):
            detect_topology(wrong)

    @pytest.mark.parametrize("value", ["two", "1.5", "0x1"])
    def test_what_is_no_number_is_named(self, whole, rank, world_size, local_rank, value):
        for variable in (rank, world_size, local_rank):
            with pytest.raises(
                ConfigError, match=f"`{variable}` is `{value}`, but it must be a whole number"
            ):
                detect_topology(whole | {variable: value})

    def test_a_negative_rank_is_named(self, whole, rank, world_size, local_rank):
        with pytest.raises(ConfigError, match=f"`{rank}` is `-1`, but it must lie between 0 and"):
            detect_topology(whole | {rank: "-1"})

    def test_a_world_of_none_is_named(self, whole, rank, world_size, local_rank):
        with pytest.raises(ConfigError, match=f"`{world_size}` is `0`, but it must be at least 1"):
            detect_topology(whole | {world_size: "0"})

    def test_a_wrong_port_is_named(self, whole, rank, world_size, local_rank):
        with pytest.raises(ConfigError, match="`MASTER_PORT` is `99999`"):
            detect_topology(whole | {"MASTER_PORT": "99999"})


@pytest.mark.parametrize(
    ("whole", "missing"),
    [
        *((TORCHRUN, name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")),
        *((OPENMPI, name) for name in OPENMPI),
        *((MVAPICH, name) for name in MVAPICH),
        *((PMI, name) for name in PMI),
        *((SRUN_TASK, name) for name in ("SLURM_LOCALID", "SLURM_NODEID")),
    ],
)
def test_half_of_the_variables_is_an_error_that_names_the_missing_one(whole, missing):
    half = {name: value for name, value in whole.items() if name != missing}
    with pytest.raises(ConfigError, match=f"`{missing}` is not set, although `"):
        detect_topology(half)


def test_a_world_without_ranks_is_an_error_rather_than_a_single_process():
    with pytest.raises(ConfigError, match="`WORLD_SIZE` is `4`, but `RANK` and `LOCAL_RANK` are not set"):
        detect_topology({"WORLD_SIZE": "4", "MASTER_ADDR": "head"})


def test_the_mapping_is_not_changed():
    environ = dict(PMI)
    detect_topology(environ)
    assert environ == PMI


def test_names_are_unique_and_plain_comes_last():
    names = [environment.name for environment in PROCESS_ENVIRONMENTS]
    assert len(set(names)) == len(names)
    assert names[-1] == "plain"
    assert process_environment({}).name == "plain"


def test_it_is_always_there_and_one_process():
    assert PlainEnvironment().detect({})
    assert PlainEnvironment().topology({"MASTER_ADDR": "head", "MASTER_PORT": "1"}) == Topology()


def test_a_world_size_without_an_explanation_is_refused():
    with pytest.raises(ConfigError, match="Start the script with `accel launch` or `torchrun`"):
        PlainEnvironment().topology({"WORLD_SIZE": "2"})
