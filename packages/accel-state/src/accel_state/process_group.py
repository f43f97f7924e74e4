"""Sets up the default process group, and ends it in an orderly way however the script ends."""

from __future__ import annotations

import _thread
import atexit
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.constants import default_pg_nccl_timeout

from accel_state.environment import read, variable
from accel_state.errors import ConfigError, StateError
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
"""What a user may ask of the group: the arguments of `torch.distributed.init_process_group`."""

_FAILURE_WAIT_S = 5.0
_CALLBACK_WAIT_S = 5.0
_RELEASE_S = 0.02
_STORE_BACKLOG = 2048
_NOTICE_S = 300.0
FIRST_NOTICE_S = 30.0
"""How long a rank waits for the others at the start before it says so."""


class _Owned:
    """The default group that accel set up, and in which process; a forked child does not own its parent's."""

    pid: int | None = None
    group: dist.ProcessGroup | None = None
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
        backend: ``gloo``, ``cpu:gloo,cuda:nccl``, or a vendor's, whose plugin has been imported.
        options: The user's own arguments; they win over ``topology``.

    Raises:
        ConfigError: If the backend is not part of this torch, or it is unknown where the ranks meet.
    """
    check_backend(backend)
    arguments: dict[str, Any] = {"rank": topology.rank, "world_size": topology.world_size, **options}
    arguments["backend"] = backend
    if "nccl" in backend:
        arguments.setdefault("timeout", default_pg_nccl_timeout)  # torch has it for NCCL without gloo alone
    server = None
    if "init_method" not in arguments and "store" not in arguments:
        arguments["init_method"] = _init_method(topology)
        server = _loopback_server(topology)
    # The functions of this module have the default group as a default argument. Imported while the group exists
    # (DDP does so, by way of torch._dynamo) they would keep it beyond the end of the script (torch 2.13).
    import torch.distributed.nn.functional  # noqa: F401

    _forget_meshes()  # of a group that the script destroyed
    _allow_connections(arguments["world_size"])
    with _reporting_a_long_wait(topology):
        dist.init_process_group(**arguments)
    del server  # torch has a store on it now
    _Owned.pid, _Owned.group = os.getpid(), dist.group.WORLD
    if not _Owned.is_exit_hooked:
        # Once: atexit keeps the order of registration, and every registration after torch's import runs before
        # torch's own hooks.
        _Owned.is_exit_hooked = True
        atexit.register(_end_at_exit)
    if "gloo" in backend:
        # A rank may be connected to all while another is not yet. If it left now, as a short script does, the other
        # would fail with "Connection closed by peer" (torch 2.13).
        dist.barrier()


@contextmanager
def _reporting_a_long_wait(topology: Topology) -> Iterator[None]:
    """Log after half a minute, and then every five, for whom this rank waits, and why."""
    is_over = threading.Event()
    threading.Thread(target=_report_waits, args=(topology, is_over), daemon=True).start()
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
    """Return whether the place where the ranks meet answers, for the end of a sentence."""
    if topology.master_addr is None:
        return ""
    place = f"`{topology.master_addr}:{topology.master_port}`"
    try:
        socket.create_connection((topology.master_addr, topology.master_port), timeout=5).close()
    except OSError as error:
        return f"; {place} cannot be reached: {error.strerror or error}"
    return f"; {place} answers, so ranks are missing, or it is another program"


def _allow_connections(num_ranks: int) -> None:
    """Let this process have as many connections as rank 0 has, which hosts the store: else the ranks wait in vain."""
    num_files = 3 * num_ranks + 256  # for each rank two connections to the store and one of gloo
    limit = raise_open_file_limit(num_files)
    if limit < num_files:
        warn_user(
            f"This process may have {limit} files open, but rank 0 of {num_ranks} ranks needs about {num_files}, a "
            "connection being a file. Raise the hard limit of the job (`ulimit -Hn`; `LimitNOFILE` of a service)."
        )


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


def adopt_group(topology: Topology, *, device_type: str, options: Mapping[str, Any]) -> tuple[Topology, str]:
    """Take over the default group that stands already, and return the topology it tells and its `backend_of_group`.

    Raises:
        StateError: If the group contradicts what is asked now.
    """
    backend = backend_of_group(device_type)
    asked = options.get("backend")
    if asked is not None and not is_group_on(asked, backend):
        raise StateError(
            f"`backend` asks for `{asked}`, but the process group stands already on `{backend}`. "
            "Ask for the same, or destroy that group first."
        )
    if "timeout" in options and not is_group_owned():
        warn_user(
            "`timeout` has no effect: the process group was set up before, outside of accel, with its own "
            "timeout. "
            "Pass it where the group is set up, or leave it out.",
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


def is_group_on(asked: str, backend: str | None) -> bool:
    """Whether the default group, of which this process uses ``backend``, has what is asked for."""
    asked = asked.lower()
    return asked == backend or (
        is_group_up() and set(asked.split(",")) <= set(dist.get_backend_config().split(","))
    )


def end_owned_group() -> None:
    """Destroy the default group if accel set it up in this process; do nothing otherwise.

    Never waits for other ranks.
    """
    if is_group_owned():
        leave_group()


def leave_group() -> None:
    """Destroy the default group, whoever set it up."""
    _Owned.pid = _Owned.group = None
    dist.destroy_process_group()
    _forget_meshes()


def _forget_meshes() -> None:
    """Let torch forget what it keeps by mesh: placements computed for operations on `DTensor`s, and flattened meshes.

    The groups of these meshes are gone, and torch takes them for equal to later ones over the same ranks.
    """
    if "torch.distributed.device_mesh" in sys.modules:
        from torch.distributed.device_mesh import _mesh_resources

        # In torch 2.13 each mesh keeps its own. Delete this when we require that release.
        for name in ("child_to_root_mapping", "root_to_flatten_mapping", "flatten_name_to_root_dims"):
            getattr(_mesh_resources, name, {}).clear()
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor, _redistribute, debug

        # The second is for torch before 2.13. Delete it when we require that release.
        clear: Any = getattr(debug, "_clear_sharding_prop_cache", None)
        clear = clear or DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear
        clear()
        # These hold placements that were computed, which may not be mixed with others: an embedding that is cut by
        # rows keeps the mask of its inputs in them.
        _redistribute._gen_transform_infos.cache_clear()


def _init_method(topology: Topology) -> str:
    file = read("debug_rdv_file")
    if file is not None:
        return f"file://{file}"
    if topology.master_addr is None or topology.master_port is None:
        raise ConfigError(
            f"{topology.world_size} processes were asked for, but it is unknown where they meet. Set `MASTER_ADDR` "
            "and `MASTER_PORT`, pass `init_method`, or start the script with `accel launch` or `torchrun`."
        )
    if variable("MASTER_ADDR") and variable("MASTER_PORT"):
        # Not the address itself: under torchrun the agent holds the store already, which only `env://` knows.
        return "env://"
    return f"tcp://{topology.master_addr}:{topology.master_port}"


def _loopback_server(topology: Topology) -> TCPStore | None:
    """Open the store of ranks that meet at the loopback, on rank 0; None if there is none to open.

    Torch then uses the same server. One of its own would listen on all interfaces (torch 2.13).
    """
    address, port = topology.master_addr or "", topology.master_port
    is_kept_by_agent = variable("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if topology.rank != 0 or not address.startswith("127.") or port is None or is_kept_by_agent:
        return None
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((address, port))
        except OSError:  # an earlier group of this process has the server, or torch raises its error
            return None
        listener.listen(_STORE_BACKLOG)
        fd = listener.detach()
    return TCPStore(
        address, port, is_master=True, wait_for_workers=False, multi_tenant=True, master_listen_fd=fd
    )


def _topology_of_group(topology: Topology) -> Topology:
    """Believe the group about rank and size; keep the rest of ``topology`` where the two agree."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if (rank, world_size) == (topology.rank, topology.world_size):
        return topology
    return single_node(topology, rank=rank, world_size=world_size)


def single_node(topology: Topology, *, rank: int, world_size: int) -> Topology:
    """Return the place of a rank whose machine is unknown: all ranks are assumed to share this one."""
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
    """End the group's threads before the interpreter ends.

    A thread of gloo that then still has to release a tensor, or runs a callback, would end the process with
    ``terminate called without an active exception`` (seen with torch 2.13).
    """
    _wait_for_callbacks()
    failure = _uncaught_error()
    if failure is None or not is_group_owned():
        end_owned_group()
    else:
        _end_after_failure(failure)


def _wait_for_callbacks() -> None:
    """Wait until no thread outside Python's own, such as one of gloo, runs Python code; five seconds at most."""
    deadline = time.monotonic() + _CALLBACK_WAIT_S
    time.sleep(_RELEASE_S)  # lets these threads have the interpreter, to release what they hold
    while time.monotonic() < deadline:
        own = {
            thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)
        }
        others = sys._current_frames().keys() - own
        if len(others) <= _thread._count() + 1 - len(own):  # the script started these, by `_thread`
            return
        time.sleep(0.001)


def _uncaught_error() -> BaseException | None:
    """Return the error that ends the script; None at a regular end, also that of an interactive session."""
    ipython = sys.modules.get("IPython")
    is_interactive = hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
    return None if is_interactive else getattr(sys, "last_value", None)


def _end_after_failure(failure: BaseException) -> None:
    """End the group after an uncaught exception, without waiting long for ranks that wait for this one.

    A collective may be under way here that no other rank will ever join, while the others wait for this rank
    in another one; the group's timeout, half an hour by default, would have to pass.
    """
    group = dist.group.WORLD if "nccl" in dist.get_backend_config() else None

    def end() -> None:
        if group is not None:
            group.abort()
        leave_group()

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
