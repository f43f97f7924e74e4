"""The rendezvous of the ranks before they form a process group; compares how each was started."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_state.environment import variable
from accel_state.errors import ConfigError, LaunchError
from accel_state.topology import Topology

_num_meetings = 0


def join_ranks(store: Store, topology: Topology, *, claim: str, timeout: timedelta) -> Store:
    """Block until all ranks have called this; return their part of the store. Every rank must call it.

    Args:
        claim: The name of a resource that only one rank may use, such as its GPU; may be empty.

    Raises:
        ConfigError: On every rank, if they were started with different numbers, or two with the same rank or claim.
        LaunchError: If a rank does not arrive in time.
    """
    global _num_meetings
    store = PrefixStore(f"accel/{_num_meetings}", store)
    rank, world_size = topology.rank, topology.world_size
    process = f"`{socket.gethostname()}` (process {os.getpid()})"
    # Other launchers set the variables of these flags as well, but MPI and SLURM not the second: so compare prefixes.
    num_machines = variable("GROUP_WORLD_SIZE")
    flags = f"`--num_processes {world_size}` (`WORLD_SIZE`)"
    flags += f", `--num_machines {num_machines}` (`GROUP_WORLD_SIZE`)" if num_machines else ""
    problem = ""
    try:
        other_flags, first = (
            store.compare_set(f"process/{rank}", "", f"{flags}\n{process}").decode().split("\n")
        )
        store.set(f"rank/{rank}", f"{flags}\n{process}\n{claim}")
        other_rank, other = rank, first
        if first == process:
            other_rank, (other_flags, other, _) = 0, _entry(store, 0)
        if not flags.startswith(other_flags) and not other_flags.startswith(flags):
            problem = (
                f"Rank {other_rank} on {other} was started with {other_flags}, but rank {rank} on {process} with "
                f"{flags}. Use the same on all machines; `--num_processes` counts the processes of all machines."
            )
        elif first != process:
            problem = (
                f"Rank {rank} was started twice, on {first} and on {process}. Check each `--machine_rank`."
            )
        elif store.add("arrived", 1) >= world_size:
            store.set("outcome", _conflict([_entry(store, other)[2] for other in range(world_size)]))
        if problem:
            store.set("outcome", problem)
        store.wait(["outcome"], timeout)
    except dist.DistStoreError as error:
        absent = [str(other) for other in range(world_size) if not store.check([f"rank/{other}"])]
        if rank == 0:
            time.sleep(3)  # it hosts the store: ranks that started later still wait, and ask who is absent
        raise LaunchError(
            f"Rank {rank} waited {timeout.total_seconds():g} s for {world_size} ranks; these did not "
            f"arrive: {', '.join(absent)}. Start the script on all machines."
        ) from error
    _num_meetings += 1
    problem = store.get("outcome").decode()
    if problem:
        if rank == 0:
            # Rank 0 hosts the store: if it left now, the other ranks could not read the problem.
            time.sleep(1)
        raise ConfigError(problem)
    return PrefixStore("group", store)


def _entry(store: Store, rank: int) -> list[str]:
    return store.get(f"rank/{rank}").decode().split("\n")


def _conflict(claims: list[str]) -> str:
    """Return what is wrong if two ranks claim the same."""
    for claim in filter(None, claims):
        ranks = [str(rank) for rank, other in enumerate(claims) if other == claim]
        if len(ranks) > 1:
            return (
                f"Ranks {' and '.join(ranks)} would run on one GPU, `{claim}`, where NCCL takes one rank. Start one "
                "process per GPU (`--num_processes 1`), run on the CPU (`--cpu`), or, for tests, let the ranks share "
                "it (`--share_gpus`)."
            )
    return ""
