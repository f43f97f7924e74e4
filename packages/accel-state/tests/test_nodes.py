"""Numbers of machines, where only host names show which ranks share one."""

import socket
from unittest import mock

import pytest
import torch.distributed as dist

from accel_state import PartialState
from accel_state.environment import clear_environment, patch_environment
from accel_state.launched_by import detect_topology
from accel_state.nodes import agree_on_nodes, on_hosts
from accel_state.runtime import current_runtime, reset_runtime
from accel_state.topology import Topology


def mpi(rank, size, local_rank, local_size):
    values = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return detect_topology({f"OMPI_COMM_WORLD_{name}": str(value) for name, value in values.items()})


def places_of(hosts):
    return [(hosts.count(host), hosts[:rank].count(host), host) for rank, host in enumerate(hosts)]


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
        found = on_hosts(told, places_of(hosts))
        assert (found.node_rank, found.num_nodes) == (node_rank, len(set(hosts)))
        assert (found.rank, found.local_rank) == (rank, local_rank)
        assert not found.is_node_rank_assumed


@pytest.mark.parametrize("hosts", ["aabb", "abab", "aaabbb", "ababab", "abcabc", "abbb", "babb"])
def test_machines_of_the_same_name_have_each_local_rank_once(hosts):
    alike = [(*numbers, "name") for *numbers, _ in places_of(hosts)]
    pairs = set()
    for rank, (num_local, local_rank, _) in enumerate(alike):
        found = on_hosts(mpi(rank, len(hosts), local_rank, num_local), alike)
        pairs.add((found.node_rank, found.local_rank))
    assert len(pairs) == len(hosts)


def test_a_number_of_ranks_that_does_not_fit_leaves_the_topology_as_it_was_set():
    told = mpi(2, 3, 0, 2)
    assert told.is_node_rank_assumed
    assert on_hosts(told, [(2, 0, "a"), (2, 1, "a"), (2, 0, "a")]) is told


@pytest.mark.parametrize("in_turn", [False, True])
def test_ranks_that_mpi_deals_out_have_each_machine_and_local_rank_once_before_they_meet(in_turn):
    places = [divmod(rank, 2)[:: -1 if in_turn else 1] for rank in range(4)]
    told = [mpi(rank, 4, local_rank, 2) for rank, (_, local_rank) in enumerate(places)]
    assert [(one.node_rank, one.local_rank) for one in told] == places


def test_nothing_is_assumed_where_the_launcher_specifies_it_or_there_is_one_machine():
    assert not mpi(1, 2, 1, 2).is_node_rank_assumed
    torchrun = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    assert not detect_topology(torchrun).is_node_rank_assumed


def node_of(hosts):
    rank = dist.get_rank()
    told = Topology(rank, 4, rank // 2, 2, rank // 2, 2, is_node_rank_assumed=True)
    found = agree_on_nodes(told, host=hosts[rank])
    return found.node_rank, found.num_nodes


def test_the_ranks_exchange_their_hosts(world):
    assert world(4).run(node_of, "abab") == [(0, 2), (1, 2), (0, 2), (1, 2)]


def places_on(hosts):
    """Return the place of this rank, which Open MPI started, in a group that is up already."""
    rank = dist.get_rank()
    local = [other for other in range(len(hosts)) if hosts[other] == hosts[rank]]
    numbers = {"RANK": rank, "SIZE": len(hosts), "LOCAL_RANK": local.index(rank), "LOCAL_SIZE": len(local)}
    variables = {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()}
    found = []
    name_of_host = mock.patch.object(socket, "gethostname", return_value=hosts[rank])
    with clear_environment(), patch_environment(**variables), name_of_host:
        for _ in range(2):  # the second state takes the group over from the first
            reset_runtime(keep_process_group=True)
            state = PartialState(cpu=True)
            topology = current_runtime().topology
            found.append((topology.node_rank, topology.num_nodes, state.local_process_index))
            assert state.is_local_main_process == (rank == local[0])
    reset_runtime(keep_process_group=True)
    assert found[0] == found[1]
    return found[0]


def test_ranks_that_mpi_deals_out_by_node_know_their_machines_in_a_group_that_was_up_before(world):
    assert world(3).run(places_on, "aba") == [(0, 2, 0), (1, 2, 0), (0, 2, 1)]
