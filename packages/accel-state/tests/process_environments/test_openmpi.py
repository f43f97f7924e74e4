from __future__ import annotations

import pytest

from accel_state.errors import ConfigError
from accel_state.process_environments.openmpi import OpenMPIEnvironment


def ompi(rank: int, size: int, local_rank: int, local_size: int) -> dict[str, str]:
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("rank", "size", "local_rank", "local_size", "node"),
    [(0, 2, 0, 2, (0, 1)), (3, 4, 1, 2, (1, 2)), (4, 5, 0, 2, (2, 3)), (2, 3, 0, 1, (2, 3))],
)
def test_the_machine_follows_from_consecutive_ranks(rank, size, local_rank, local_size, node):
    found = OpenMPIEnvironment().topology(ompi(rank, size, local_rank, local_size))
    assert (found.rank, found.world_size, found.local_rank) == (rank, size, local_rank)
    assert (found.node_rank, found.num_nodes) == node


def test_ranks_on_one_machine_meet_on_loopback_unless_told_otherwise():
    assert OpenMPIEnvironment().topology(ompi(0, 2, 0, 2)).master_addr == "127.0.0.1"
    told = ompi(0, 2, 0, 2) | {"MASTER_ADDR": "head", "MASTER_PORT": "5"}
    found = OpenMPIEnvironment().topology(told)
    assert (found.master_addr, found.master_port) == ("head", 5)


def test_more_local_ranks_than_ranks_are_refused():
    with pytest.raises(
        ConfigError, match=r"`OMPI_COMM_WORLD_LOCAL_SIZE` is `4`.*`OMPI_COMM_WORLD_SIZE` \(`2`\)"
    ):
        OpenMPIEnvironment().topology(ompi(0, 2, 0, 4))
