"""The meeting of the ranks before they form a process group, where what each was started with is compared."""

from __future__ import annotations

import json
import os
import socket
from collections import defaultdict
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_state.environment import variable
from accel_state.errors import ConfigError, LaunchError
from accel_state.topology import Topology

_NUMBERS = ("`--num_processes` (`WORLD_SIZE`)", "`--num_machines` (`GROUP_WORLD_SIZE`)")
_num_meetings = 0


def join_ranks(store: Store, topology: Topology, *, claim: str, timeout: timedelta) -> None:
    """Block until all ranks have called this.

    Args:
        claim: The name of what only one rank may use, such as its GPU; may be empty.

    Raises:
        ConfigError: On every rank, if they were started with different numbers, or two with the same rank or claim.
        LaunchError: If a rank does not arrive in time.
    """
    global _num_meetings
    rank, world_size = topology.rank, topology.world_size
    store = PrefixStore(f"accel_join/{_num_meetings}", store)
    process = f"`{socket.gethostname()}` (process {os.getpid()})"
    entry = [str(world_size), variable("GROUP_WORLD_SIZE") or "", process, claim]
    try:
        first = store.compare_set(f"process/{rank}", "", process).decode()
        store.set(f"rank/{rank}", json.dumps(entry))
        problem = _difference(rank, entry, json.loads(store.get("rank/0")))
        if not problem and first != process:
            problem = (
                f"Rank {rank} was started twice, on {first} and on {process}. Give each machine its own "
                "`--machine_rank`."
            )
        if problem:
            store.set("outcome", problem)
        elif store.add("arrived", 1) >= world_size:
            store.set("outcome", _conflict(store, world_size))
        store.wait(["outcome"], timeout)
    except dist.DistStoreError as error:
        absent = [str(other) for other in range(world_size) if not store.check([f"rank/{other}"])]
        raise LaunchError(
            f"Rank {rank} waited {timeout.total_seconds():g} s for {world_size} ranks, of which these did not "
            f"arrive: {', '.join(absent)}. Start the script on all machines."
        ) from error
    problem = problem or store.get("outcome").decode()
    if problem:
        raise ConfigError(problem)
    _num_meetings += 1


def _difference(rank: int, entry: list[str], of_rank_0: list[str]) -> str:
    """Return what is wrong if this rank was started with other numbers than rank 0."""
    unlike = [
        f"{name} is {theirs} for rank 0 and {ours} for rank {rank}"
        for name, theirs, ours in zip(_NUMBERS, of_rank_0[:2], entry[:2], strict=True)
        if theirs and ours and theirs != ours
    ]
    if not unlike:
        return ""
    return (
        f"The machines were started with different numbers: {', '.join(unlike)}; these ranks run on {of_rank_0[2]} "
        f"and {entry[2]}. Give all machines the same; `--num_processes` counts the processes of all machines."
    )


def _conflict(store: Store, world_size: int) -> str:
    """Return what is wrong if two ranks claim the same."""
    ranks = defaultdict(list)
    for rank, entry in enumerate(store.multi_get([f"rank/{rank}" for rank in range(world_size)])):
        ranks[json.loads(entry)[3]].append(str(rank))
    for claim, several in ranks.items():
        if claim and len(several) > 1:
            return (
                f"Ranks {' and '.join(several)} would run on one GPU, `{claim}`, where NCCL takes one rank. Start one "
                "process per GPU (`--num_processes 1`), run on the CPU (`--cpu`), or, for tests, let the ranks share "
                "it (`--share_gpus`)."
            )
    return ""
