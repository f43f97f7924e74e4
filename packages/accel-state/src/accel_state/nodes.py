"""Agreement of the ranks on the numbers of their machines, if the launcher does not number them."""

from __future__ import annotations

import hashlib
import socket
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from accel_state.topology import Topology


def agree_on_nodes(topology: Topology, *, device: torch.device, host: str | None = None) -> Topology:
    """Return the topology with the number of this rank's machine, counted in the order of their first ranks.

    MPI gives each rank its number on its machine, but not the number of the machine: that depends on how ranks are
    mapped (``--map-by node``, a rank file). Every rank must call this while the process group is up; it blocks
    until all have.

    Args:
        topology: As the environment describes it.
        device: This rank's device; used if the process group has no backend for the CPU.
        host: A name of this machine that no other has; by default the host name with the boot id.
    """
    served = {pair.partition(":")[0] for pair in dist.get_backend_config().split(",")}
    digest = hashlib.sha256((host or _this_host()).encode()).digest()
    # Not `all_gather_object`, which needs NumPy.
    own = torch.tensor(list(digest), dtype=torch.uint8, device="cpu" if "cpu" in served else device)
    gathered = [torch.empty_like(own) for _ in range(topology.world_size)]
    dist.all_gather(gathered, own)
    return on_hosts(topology, [bytes(one.tolist()) for one in gathered])


def on_hosts(topology: Topology, hosts: Sequence[Hashable]) -> Topology:
    """Return the topology of a rank that runs on ``hosts[rank]``.

    If the number of ranks on this host is not the one that the launcher gave, several machines have the same name,
    and the topology is returned unchanged.
    """
    own = hosts[topology.rank]
    if Counter(hosts)[own] != topology.local_world_size:
        return topology
    in_order = list(dict.fromkeys(hosts))
    return replace(
        topology, node_rank=in_order.index(own), num_nodes=len(in_order), is_node_rank_assumed=False
    )


def _this_host() -> str:
    """Return the machine's name and boot id, since containers may share a name."""
    boot_id = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot_id.read_text().strip() if boot_id.exists() else ''}"
