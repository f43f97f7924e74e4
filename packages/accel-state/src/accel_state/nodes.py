"""Agreement of the ranks on the numbers of their machines, if the launcher does not number them."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore

from accel_state.topology import Topology


def agree_on_nodes(topology: Topology, *, host: str | None = None) -> Topology:
    """Return the topology with the number of this rank's machine, counted in the order of their first ranks.

    MPI sets each rank's number on its machine, but not the number of the machine: that depends on how ranks are
    mapped (``--map-by node``, a rank file). Every rank must call this while the process group is up; it blocks
    until all have.

    Args:
        topology: As the environment describes it.
        host: A unique name of this machine; by default the host name with the boot id.
    """
    world = dist.group.WORLD
    assert world is not None
    store = PrefixStore("accel_hosts", world.get_group_store())
    ranks = [str(rank) for rank in range(topology.world_size)]
    entry = f"{topology.local_world_size} {topology.local_rank} {host or this_host()}"
    store.set(ranks[topology.rank], entry)
    store.wait(ranks)
    return on_hosts(topology, [entry.decode().split(" ", 2) for entry in store.multi_get(ranks)])


def on_hosts(topology: Topology, entries: Iterable[Sequence[Hashable]]) -> Topology:
    """Return the topology of a rank, given the number of ranks on its machine, local rank and host of each rank.

    Local ranks distinguish machines of the same name, since each is unique on a machine. If the number of ranks on
    this machine then differs from the launcher's, the topology is returned unchanged.
    """
    seen: Counter[Sequence[Hashable]] = Counter()
    hosts = []
    for num_local, local_rank, host in entries:
        hosts.append((num_local, host, seen[num_local, local_rank, host]))
        seen[num_local, local_rank, host] += 1
    machine = hosts[topology.rank]
    if Counter(hosts)[machine] != topology.local_world_size:
        return topology
    in_order = list(dict.fromkeys(hosts))
    return replace(
        topology, node_rank=in_order.index(machine), num_nodes=len(in_order), is_node_rank_assumed=False
    )


def this_host() -> str:
    """Return the machine's name and boot id, since containers may share a name."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot_id.read_text().strip() if boot_id.exists() else ''}"
