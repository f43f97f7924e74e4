"""Numbers of machines, where only host names tell which ranks share one."""

import pytest
import torch
import torch.distributed as dist

from accel_state.nodes import agree_on_nodes, on_hosts
from accel_state.process_environments import detect_topology
from accel_state.topology import Topology


def mpi(rank, size, local_rank, local_size):
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return detect_topology({f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()})


@pytest.mark.parametrize(
    ("hosts", "places"),
    [
        ("aabb", [(0, 0), (0, 1), (1, 0), (1, 1)]),  # mpirun
        ("abab", [(0, 0), (1, 0), (0, 1), (1, 1)]),  # mpirun --map-by node
        ("bbaa", [(0, 0), (0, 1), (1, 0), (1, 1)]),
        ("abba", [(0, 0), (1, 0), (1, 1), (0, 1)]),  # a rank file
        ("aaab", [(0, 0), (0, 1), (0, 2), (1, 0)]),
        ("abcd", [(0, 0), (1, 0), (2, 0), (3, 0)]),
    ],
)
def test_the_machine_is_that_of_the_ranks_on_the_same_host(hosts, places):
    for rank, (node_rank, local_rank) in enumerate(places):
        told = mpi(rank, len(hosts), local_rank, hosts.count(hosts[rank]))
        found = on_hosts(told, hosts)
        assert (found.node_rank, found.num_nodes) == (node_rank, len(set(hosts)))
        assert (found.rank, found.local_rank) == (rank, local_rank)
        assert not found.is_node_rank_assumed


def test_hosts_of_the_same_name_leave_the_topology_as_it_was_told():
    told = mpi(3, 4, 1, 2)
    assert told.is_node_rank_assumed
    assert on_hosts(told, "aaaa") is told


def test_nothing_is_assumed_where_the_launcher_says_it_or_there_is_one_machine():
    assert not mpi(1, 2, 1, 2).is_node_rank_assumed
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    assert not detect_topology(torchrun).is_node_rank_assumed


def node_of(hosts):
    rank = dist.get_rank()
    told = Topology(rank, 4, rank // 2, 2, rank // 2, 2, is_node_rank_assumed=True)
    found = agree_on_nodes(told, device=torch.device("cpu"), host=hosts[rank])
    return found.node_rank, found.num_nodes


def test_the_ranks_tell_each_other_their_hosts(world):
    assert world(4).run(node_of, "abab") == [(0, 2), (1, 2), (0, 2), (1, 2)]
