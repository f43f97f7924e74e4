"""Sets up the default process group, and ends it in an orderly way however the script ends."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch.distributed as dist

from accel_state.connections import Connections, opened_connections
from accel_state.environment import read, variable
from accel_state.errors import ConfigError, StateError
from accel_state.topology import Topology

OPTIONS = frozenset(
    {
        "backend",
        "device_id",
        "group_name",
        "init_method",
        "pg_options",
        "rank",
        "store",
        "timeout",
        "world_size",
    }
)
"""What a user may say about the group: the arguments of `torch.distributed.init_process_group`."""


_FAILURE_WAIT_S = 5.0
_CALLBACK_WAIT_S = 5.0
_REFERENCES_OF_A_SOLE_HOLDER = 2  # the entry's, and the argument's of `sys.getrefcount`


class _Owned:
    """The default group that accel set up, and in which process; a forked child does not own its parent's.

    `ended` holds groups that were destroyed while something else, a wrapped model or a callback of a
    collective, still held them: whoever lets go last joins the group's threads, and that must not be one of
    these threads, which would end the process with ``Resource deadlock avoided`` (gloo, torch 2.13), nor a
    forked child, which has no such threads.
    """

    pid: int | None = None
    group: dist.ProcessGroup | None = None
    connections: Connections | None = None
    ended: ClassVar[list[tuple[int | None, dist.ProcessGroup]]] = []
    is_exit_hooked: bool = False


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments that `torch.distributed.init_process_group` does not know."""
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ConfigError(
            f"`{unknown[0]}` is not an argument of the process group. Known: {', '.join(sorted(OPTIONS))}."
        )


def is_group_up() -> bool:
    """Tell whether a default process group exists, whoever set it up."""
    return dist.is_available() and dist.is_initialized()


def is_group_owned() -> bool:
    """Tell whether accel set the default group up in this process."""
    if _Owned.group is None or _Owned.pid != os.getpid() or not is_group_up():
        return False
    return dist.group.WORLD is _Owned.group


def set_up_group(topology: Topology, *, backend: str, options: Mapping[str, Any]) -> None:
    """Create the default process group; every rank must call this, and blocks until all have.

    Args:
        topology: Who this process is, and where the ranks meet.
        backend: ``gloo``, ``nccl``, or a vendor's, whose plugin has been imported.
        options: The user's wishes; they win over ``topology``.

    Raises:
        ConfigError: If the backend is not part of this torch, or nobody says where the ranks meet.
    """
    check_backend(backend)
    arguments: dict[str, Any] = {"rank": topology.rank, "world_size": topology.world_size, **options}
    arguments["backend"] = backend
    if "init_method" not in arguments and "store" not in arguments:
        arguments["init_method"] = _meeting_point(topology)
    # Before the group exists: these functions have it as a default argument, so that imported later (which DDP
    # does, by way of torch._dynamo) they keep it, and its threads, beyond the end of the script (torch 2.13).
    import torch.distributed.nn.functional  # noqa: F401

    _let_go(wait_s=0.0)
    create_owned_group(**arguments)
    if backend == "gloo":
        # A rank may be connected to all while another is not yet. If it left now, as a short script does, the other
        # would fail with "Connection closed by peer" (torch 2.13).
        dist.barrier()


def check_backend(backend: str) -> None:
    """Refuse a process group backend that this torch was not built with, nor a plugin has added.

    Raises:
        ConfigError: Naming those that are there.
    """
    if not dist.is_available():
        raise ConfigError(
            "Several processes were asked for, but this torch is built without `torch.distributed`. "
            "Install a build that has it, or start one process."
        )
    for part in backend.split(","):
        name = part.rpartition(":")[2].lower()
        if not dist.is_backend_available(name):
            built = [known for known in dist.Backend.backend_list if dist.is_backend_available(known)]
            raise ConfigError(
                f"The process group backend `{name}` is not part of this torch. Available: "
                f"{', '.join(built)}."
            )


def adopt_group(topology: Topology, *, options: Mapping[str, Any]) -> tuple[Topology, str]:
    """Take over the default group that stands already, and return the topology it tells and its backend.

    Raises:
        StateError: If the group contradicts what is asked now.
    """
    backend = backend_of_group()
    asked = options.get("backend")
    if asked is not None and asked != backend:
        raise StateError(
            f"`backend` asks for `{asked}`, but the process group stands already on `{backend}`. "
            "Ask for the same, or destroy that group first."
        )
    if "timeout" in options and not is_group_owned():
        warnings.warn(
            "`timeout` has no effect: the process group was set up before, outside of accel, with its own "
            "timeout.",
            stacklevel=4,
        )
    return _topology_of_group(topology), backend


def backend_of_group() -> str:
    """Return the backend of the default group: one name, or a list like ``cpu:gloo,cuda:nccl`` if it has several."""
    backend = dist.get_backend_config()
    names = {pair.rpartition(":")[2] for pair in backend.split(",")}
    return names.pop() if len(names) == 1 else backend


def end_owned_group() -> None:
    """Destroy the default group if accel set it up in this process; do nothing otherwise.

    Never waits for other ranks.
    """
    if is_group_owned():
        leave_group()
    else:
        _let_go(wait_s=0.0)


def create_owned_group(**arguments: Any) -> None:
    """Create the default group with these arguments of `torch.distributed.init_process_group`, and own it."""
    with opened_connections() as connections:
        dist.init_process_group(**arguments)
    _Owned.pid, _Owned.group, _Owned.connections = os.getpid(), dist.group.WORLD, connections
    if not _Owned.is_exit_hooked:
        # Once: atexit keeps the order of registration, and every registration after torch's import runs before
        # torch's own hooks.
        _Owned.is_exit_hooked = True
        atexit.register(_end_at_exit)


def leave_group(*, release_others: bool = False) -> bool:
    """Destroy the default group at once and return whether accel had set it up.

    Args:
        release_others: See to it that ranks that wait for this one in a collective get an error. gloo keeps the
            connections to them open while anything holds the group, as a wrapped model does, perhaps in the
            traceback of the error that makes this rank leave: they are cut, if accel has set the group up. The
            communicators of other backends are aborted.
    """
    was_owned, connections, port = is_group_owned(), _Owned.connections, _store_port()
    if release_others and backend_of_group() != "gloo":
        dist.distributed_c10d._abort_process_group()
    else:
        dist.destroy_process_group()
    if was_owned:
        if release_others and connections is not None:
            connections.cut(spare_port=port)
        _let_go(wait_s=0.0)
    return was_owned


def _store_port() -> int | None:
    """Return the port of the store that the default group was set up with, None if it is not on a network."""
    from torch._C._distributed_c10d import PrefixStore, TCPStore

    store = dist.distributed_c10d._get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.port if isinstance(store, TCPStore) else None


def _let_go(*, wait_s: float) -> None:
    """Drop this process's groups that have ended, and join their threads; keep those that others still hold.

    Args:
        wait_s: How long to wait, in seconds, for others to let go.
    """
    if _Owned.group is not None:
        _Owned.ended.append((_Owned.pid, _Owned.group))
    _Owned.pid = _Owned.group = _Owned.connections = None
    deadline, has_tidied_up = time.monotonic() + wait_s, False
    for index in reversed(range(len(_Owned.ended))):
        if _Owned.ended[index][0] != os.getpid():
            continue
        while sys.getrefcount(_Owned.ended[index][1]) > _REFERENCES_OF_A_SOLE_HOLDER:
            if time.monotonic() >= deadline:
                break
            if not has_tidied_up:  # the holder may be garbage
                gc.collect()
                has_tidied_up = True
            time.sleep(0.001)
        else:
            del _Owned.ended[index]


def _meeting_point(topology: Topology) -> str:
    file = read("debug_rdv_file")
    if file is not None:
        return f"file://{file}"
    if topology.master_addr is None or topology.master_port is None:
        raise ConfigError(
            f"{topology.world_size} processes were asked for, but nobody says where they meet. Set "
            "`MASTER_ADDR` and "
            "`MASTER_PORT`, pass `init_method`, or start the script with `accel launch` or `torchrun`."
        )
    if variable("MASTER_ADDR") and variable("MASTER_PORT"):
        # Not the address itself: under torchrun the agent holds the store already, which only `env://` knows.
        return "env://"
    return f"tcp://{topology.master_addr}:{topology.master_port}"


def _topology_of_group(topology: Topology) -> Topology:
    """Believe the group about rank and size; keep the rest of ``topology`` where the two agree."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) == (topology.rank, topology.world_size):
        return topology
    return single_node(topology, rank=rank, world_size=world_size)


def single_node(topology: Topology, *, rank: int, world_size: int) -> Topology:
    """Return the place of a rank of whose machine nothing is known: all are taken to share this one."""
    return replace(
        topology,
        rank=rank,
        world_size=world_size,
        local_rank=rank,
        local_world_size=world_size,
        node_rank=0,
        num_nodes=1,
        source="process_group",
    )


def _end_at_exit() -> None:
    """Join the group's threads before the interpreter goes.

    gloo's threads otherwise ask for the interpreter when it is no more, which ends the process with
    ``terminate called without an active exception`` (seen with torch 2.13).
    """
    failure = getattr(sys, "last_value", None)
    if failure is None or not is_group_owned():
        end_owned_group()
        _let_go(wait_s=_CALLBACK_WAIT_S)
    else:
        _end_after_failure(failure)


def _end_after_failure(failure: BaseException) -> None:
    """End the group after an uncaught exception, without waiting long for ranks that wait for this one.

    A collective of ours may be under way that no other rank will ever join, while the others wait for us in
    one that we shall never join; the group's timeout, half an hour by default, would have to pass.
    """
    is_nccl = "nccl" in dist.get_backend()
    destroy = dist.distributed_c10d._abort_process_group if is_nccl else dist.destroy_process_group

    def end() -> None:
        destroy()
        _let_go(wait_s=0.0)

    ending = threading.Thread(target=end, name="end-process-group", daemon=True)
    ending.start()
    ending.join(timeout=_FAILURE_WAIT_S)
    if ending.is_alive():
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(failure, KeyboardInterrupt):
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)
