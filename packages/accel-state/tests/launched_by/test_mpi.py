from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.launched_by.mpi import MPI_ENVIRONMENTS
from accel_state.topology import Topology

OPENMPI, MVAPICH, PMI = MPI_ENVIRONMENTS
SRUN = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "1", "PMI_SIZE": "2"}


def ompi(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size", "node"),
    [(0, 2, 0, 2, (0, 1)), (3, 4, 1, 2, (1, 2)), (4, 5, 0, 2, (2, 3)), (2, 3, 0, 1, (2, 3))],
)
def test_the_machine_follows_from_consecutive_ranks(rank, size, local_rank, local_size, node):
    found = OPENMPI.topology(ompi(rank, size, local_rank, local_size))
    assert (found.rank, found.world_size, found.local_rank) == (rank, size, local_rank)
    assert (found.node_rank, found.num_nodes) == node


def test_ranks_on_one_machine_meet_on_loopback_unless_configured_otherwise():
    assert OPENMPI.topology(ompi(0, 2, 0, 2)).master_addr == "127.0.0.1"
    told = ompi(0, 2, 0, 2) | {"MASTER_ADDR": "head", "MASTER_PORT": "5"}
    found = OPENMPI.topology(told)
    assert (found.master_addr, found.master_port) == ("head", 5)


def test_more_local_ranks_than_ranks_are_refused():
    with pytest.raises(
        ConfigError, match=r"`OMPI_COMM_WORLD_LOCAL_SIZE` is `4`.*`OMPI_COMM_WORLD_SIZE` \(`2`\)"
    ):
        OPENMPI.topology(ompi(0, 2, 0, 4))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [({"MV2_COMM_WORLD_RANK": "0"}, True), ({"MV2_COMM_WORLD_SIZE": "2"}, True), ({"PMI_RANK": "0"}, False)],
)
def test_one_trace_of_mvapich_is_enough(environ, expected):
    assert MVAPICH.detect(environ) is expected


def test_the_four_variables_of_mvapich_are_read():
    values = {"RANK": "2", "SIZE": "4", "LOCAL_RANK": "0", "LOCAL_SIZE": "2"}
    found = MVAPICH.topology({f"MV2_COMM_WORLD_{name}": value for name, value in values.items()})
    assert (found.rank, found.world_size, found.local_rank, found.local_world_size) == (2, 4, 0, 2)
    assert (found.node_rank, found.source) == (1, "mvapich")


def test_a_single_process_needs_no_local_variables():
    found = PMI.topology({"PMI_RANK": "0", "PMI_SIZE": "1"})
    assert found == Topology(source="pmi", master_addr="127.0.0.1", master_port=29500)


def test_several_processes_without_local_variables_are_an_error():
    with pytest.raises(
        ConfigError, match="`MPI_LOCALRANKID` is not set, although `PMI_RANK` is. MPI sets both"
    ):
        PMI.topology({"PMI_RANK": "0", "PMI_SIZE": "2"})


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (SRUN, False),
        (SRUN | {"MPI_LOCALRANKID": "0"}, True),
        (SRUN | {"PMI_RANK": "0"}, True),
        (SRUN | {"PMI_SIZE": "8"}, True),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, True),
        ({}, False),
    ],
)
def test_what_srun_set_for_pmi2_is_left_to_slurm(environ, expected):
    assert PMI.detect(environ) is expected
