"""Set up the default process group, or adopt an existing one."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.constants import default_pg_nccl_timeout, default_pg_timeout
from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_state.environment import read, variable
from accel_state.errors import ConfigError, StateError
from accel_state.group_exit import forget_meshes, is_group_owned, own_group
from accel_state.joining import join_ranks
from accel_state.open_files import raise_open_file_limit
from accel_state.topology import Topology
from accel_state.user_warnings import warn_user

logger = logging.getLogger(__name__)

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
"""Arguments of `torch.distributed.init_process_group` that a user may set."""
_STORE_BACKLOG = 2048  # ranks that may be connecting at once
_store: Store | None = None
"""Of the latest group, which it outlives: other ranks may be on their way to the next while rank 0 ends this one."""
_NOTICE_S = 300.0
FIRST_NOTICE_S = 30.0
"""Seconds that a rank waits for the other ranks at the start before it logs the wait."""


def check_options(options: Mapping[str, Any]) -> None:
    """Check that each option is an argument of `torch.distributed.init_process_group`.

    Raises:
        ConfigError: For an unknown one.
    """
    unknown = sorted(set(options) - OPTIONS)
    if unknown:
        raise ConfigError(
            f"`{unknown[0]}` is not an argument of the process group. Known: {', '.join(sorted(OPTIONS))}."
        )


def is_group_up() -> bool:
    """Whether there is a default process group, of accel or of the script."""
    return dist.is_available() and dist.is_initialized()


def set_up_group(topology: Topology, *, backend: str, options: Mapping[str, Any], claim: str = "") -> None:
    """Create the default process group. Every rank must call it; it blocks until all have.

    Args:
        topology: The rank of this process, and the rendezvous.
        backend: ``gloo``, ``cpu:gloo,cuda:nccl``, or a vendor's, whose plugin has been imported.
        options: User-provided arguments, which override ``topology``.
        claim: The name of a resource that only one rank may use, such as its GPU; may be empty.

    Raises:
        ConfigError: If the backend is not part of this torch, the rendezvous is unknown, or the ranks contradict
            each other.
        LaunchError: If a rank does not arrive in time.
    """
    check_backend(backend)
    arguments: dict[str, Any] = {"rank": topology.rank, "world_size": topology.world_size, **options}
    arguments["backend"] = backend
    if "nccl" in backend:
        arguments.setdefault("timeout", default_pg_nccl_timeout)  # torch uses it only for NCCL without gloo
    # The functions of this module have the default group as a default argument. Imported while the group exists
    # (DDP does so, by way of torch._dynamo) they would keep it beyond the end of the script (torch 2.13).
    import torch.distributed.nn.functional  # noqa: F401

    forget_meshes()  # of a group that the script destroyed
    _allow_connections(arguments["world_size"])
    with _reporting_a_long_wait(topology):
        if "init_method" not in arguments and "store" not in arguments:
            arguments |= _meet(topology, claim=claim, timeout=arguments.get("timeout") or default_pg_timeout)
        dist.init_process_group(**arguments)
    own_group()
    if "gloo" in backend:
        # A rank may be connected to all while another is not yet. If it left now, as a short script does, the other
        # would fail with "Connection closed by peer" (torch 2.13).
        dist.barrier()


@contextmanager
def _reporting_a_long_wait(topology: Topology) -> Iterator[None]:
    """Log after half a minute, and then every five minutes, which ranks this rank waits for, and why."""
    is_over = threading.Event()
    threading.Thread(target=_report_waits, args=(topology, is_over), daemon=True).start()  # no wait at exit
    try:
        yield
    finally:
        is_over.set()


def _report_waits(topology: Topology, is_over: threading.Event) -> None:
    awaited = f"the other of {topology.world_size} ranks" if topology.rank == 0 else "rank 0"
    waited_s, pause_s = 0.0, FIRST_NOTICE_S
    while not is_over.wait(pause_s):
        waited_s, pause_s = waited_s + pause_s, _NOTICE_S
        logger.warning(
            "Rank %d has waited for %s for %.0f s%s. Start the script on all machines, with the same address and port, "
            "which all of them can reach.",
            *(topology.rank, awaited, waited_s, _reason_to_wait(topology)),
        )


def _reason_to_wait(topology: Topology) -> str:
    """Return whether the rendezvous answers, for the end of a sentence."""
    if topology.master_addr is None:
        return ""
    address = f"`{topology.master_addr}:{topology.master_port}`"
    try:
        socket.create_connection((topology.master_addr, topology.master_port), timeout=5).close()
    except OSError as error:
        return f"; {address} cannot be reached: {error.strerror or error}"
    return f"; {address} answers, so ranks are missing, or it is another program"


def _allow_connections(num_ranks: int) -> None:
    """Raise the limit of open files for the connections of rank 0, which hosts the store; else the ranks would hang."""
    num_files = 3 * num_ranks + 256  # for each rank two connections to the store and one of gloo
    limit = raise_open_file_limit(num_files)
    if limit < num_files:
        warn_user(
            f"This process may have {limit} files open, but rank 0 of {num_ranks} ranks needs about {num_files}, a "
            "connection being a file. Raise the hard limit of the job (`ulimit -Hn`; `LimitNOFILE` of a service)."
        )


def check_backend(backend: str) -> None:
    """Check that a process group backend is part of this torch, or was added by a plugin.

    Raises:
        ConfigError: If it is neither; the message lists the available ones.
    """
    if not dist.is_available():
        raise ConfigError(
            "Several processes were requested, but this torch is built without `torch.distributed`. "
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


def adopt_group(topology: Topology, *, device_type: str, options: Mapping[str, Any]) -> tuple[Topology, str]:
    """Adopt the existing default group; return its topology and its `backend_of_group`.

    Raises:
        StateError: If the group contradicts `options`.
    """
    backend = backend_of_group(device_type)
    requested = options.get("backend")
    if requested is not None and not is_group_on(requested, backend):
        raise StateError(
            f"`backend` requests `{requested}`, but the process group already uses `{backend}`. "
            "Pass the same, or destroy that group first."
        )
    if "timeout" in options and not is_group_owned():
        warn_user(
            "`timeout` has no effect: the process group was set up before, outside of accel, with another "
            "timeout. Pass it to the call that sets up the group, or leave it out.",
        )
    return _topology_of_group(topology), backend


def backend_of_group(device_type: str) -> str:
    """Return the backend that serves a type of device in the default group: ``nccl`` of ``cpu:gloo,cuda:nccl``.

    If none does, its only backend, or the list of several.
    """
    config = dist.get_backend_config()
    backends = dict(pair.split(":") for pair in config.split(","))
    names = set(backends.values())
    return backends.get(device_type) or (names.pop() if len(names) == 1 else config)


def is_group_on(requested: str, backend: str | None) -> bool:
    """Whether the default group has the backend ``requested``; this process uses its ``backend``."""
    requested = requested.lower()
    return requested == backend or (
        is_group_up() and set(requested.split(",")) <= set(dist.get_backend_config().split(","))
    )


def _meet(topology: Topology, *, claim: str, timeout: timedelta) -> dict[str, Any]:
    """Wait for all ranks; return the arguments of the group with the store for its addresses."""
    global _store
    file = read("debug_rdv_file")
    if file is not None:
        return {"init_method": f"file://{file}"}
    if topology.master_addr is None or topology.master_port is None:
        raise ConfigError(
            f"{topology.world_size} processes were requested, but their rendezvous is unknown. Set `MASTER_ADDR` "
            "and `MASTER_PORT`, pass `init_method`, or start the script with `accel launch` or `torchrun`."
        )
    store = _open_store(topology.master_addr, topology.master_port, topology.rank, timeout)
    joined = join_ranks(store, topology, claim=claim, timeout=timeout)
    _store = store
    return {"store": joined}


def _open_store(address: str, port: int, rank: int, timeout: timedelta) -> Store:
    """Open the store of the ranks, on rank 0 its server, unless the agent of torchrun has it.

    With a loopback address it listens on that interface only; torch's server listens on all (torch 2.13).
    """
    if variable("TORCHELASTIC_USE_AGENT_STORE") == "True":
        store = TCPStore(address, port, timeout=timeout, wait_for_workers=False)
        return PrefixStore(f"attempt_{variable('TORCHELASTIC_RESTART_COUNT')}", store)
    fd = _loopback_listener(address, port) if rank == 0 and address.startswith("127.") else None
    return TCPStore(
        *(address, port, None, rank == 0, timeout),
        wait_for_workers=False,
        multi_tenant=True,  # an earlier store of this process may use the port
        master_listen_fd=fd,
        use_libuv=variable("USE_LIBUV") != "0",
    )


def _loopback_listener(address: str, port: int) -> int | None:
    """Return a listening socket, None if the port is taken: by an earlier group of this process, or torch raises."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port in TIME_WAIT is free
        try:
            listener.bind((address, port))
        except OSError:
            return None
        listener.listen(_STORE_BACKLOG)
        return listener.detach()  # `with` would close the socket that torch takes over


def _topology_of_group(topology: Topology) -> Topology:
    """Return the topology if the group agrees with it, else the group's, assuming one machine."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) == (topology.rank, topology.world_size):
        return topology
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
