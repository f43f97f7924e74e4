"""Leaves the process group that accel set up in order, however the script ends."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

_FAILURE_WAIT_S = 5.0  # then the process exits without destroying the group
_CALLBACK_WAIT_S = 5.0  # for threads of C++ code, such as gloo's
_RELEASE_S = 0.02
_LEFT = "accel_left"
_MOST_NAMED = 8  # of the ranks that left: each of thousands may ask


class _Owned:
    """The default group that accel set up, and the process that did: a forked child must not destroy it."""

    pid: int | None = None
    group: dist.ProcessGroup | None = None
    is_exit_hooked: bool = False
    has_ended = threading.Event()
    ending = threading.Thread()


def own_group() -> None:
    """Record that accel set up the default group, which ends with this process at the latest."""
    _Owned.pid, _Owned.group, _Owned.has_ended = os.getpid(), dist.group.WORLD, threading.Event()
    # Now, since Python 3.12 starts no thread during interpreter shutdown, and `_end_after_failure` needs it then.
    _Owned.ending = threading.Thread(
        target=_end_if_failed, args=(_Owned.has_ended,), name="end-process-group", daemon=True
    )
    _Owned.ending.start()
    if not _Owned.is_exit_hooked:
        # Once: atexit keeps the order of registration, and every registration after torch's import runs before
        # torch's hooks.
        _Owned.is_exit_hooked = True
        atexit.register(_end_at_exit)


def is_group_owned() -> bool:
    """Whether accel set up the default group in this process."""
    return _Owned.group is not None and _Owned.pid == os.getpid() and dist.group.WORLD is _Owned.group


def end_owned_group() -> None:
    """Destroy the default group if accel set it up in this process; do nothing otherwise.

    Never waits for other ranks.
    """
    if is_group_owned():
        leave_group()


def leave_group(*, has_failed: bool = False) -> None:
    """Destroy the default group, also if the script set it up."""
    if not has_failed:
        _record_end()
    _Owned.pid = _Owned.group = None
    _Owned.has_ended.set()
    dist.destroy_process_group()
    forget_meshes()


def _record_end() -> None:
    """Record for ranks that still wait for this one that it has left them, without an error."""
    group = dist.group.WORLD
    store: Any = None if group is None else group.get_group_store()
    if group is not None and store is not None:  # MPI's group has none
        with contextlib.suppress(RuntimeError):  # rank 0, which hosts the store, has ended
            key = f"{_LEFT}/{store.add(_LEFT, 1)}"
            store.set(key, str(group.rank()))
            store.check([key])  # waits for the store, as `set` does not: another rank could look too early


def ranks_that_left() -> list[int]:
    """Return up to eight ranks that have left the default group without an error while this rank is still in it."""
    group = dist.group.WORLD
    store: Any = None if group is None else group.get_group_store()
    if group is None or store is None:
        return []
    try:
        keys = [f"{_LEFT}/{number + 1}" for number in range(min(store.add(_LEFT, 0), _MOST_NAMED))]
        return sorted(int(store.get(key)) for key in keys if store.check([key]))
    except RuntimeError:  # rank 0, which hosts the store, has ended, whether by an error is unknown
        return []


def forget_meshes() -> None:
    """Clear what torch caches by mesh: flattened meshes, and placements computed for operations on `DTensor`s.

    The groups of these meshes are destroyed, but torch compares meshes by their ranks: a second run in this process
    would use the groups of the first, as it would those that DeepSpeed keeps.
    """
    deepspeed_groups = sys.modules.get("deepspeed.utils.groups")  # only if the run used it
    if deepspeed_groups is not None:
        # DeepSpeed has it for its own `destroy_process_group`. Releases before 0.19.8 may lack it.
        release = getattr(deepspeed_groups, "_release_process_group_references", None)
        if release is not None:
            release()
        else:
            vars(deepspeed_groups).update(_WORLD_GROUP=None, mesh_device=None)
    if "torch.distributed.device_mesh" in sys.modules:
        from torch.distributed.device_mesh import _mesh_resources

        # From torch 2.13 on, each mesh stores these. Delete this when we require that release.
        for name in ("child_to_root_mapping", "root_to_flatten_mapping", "flatten_name_to_root_dims"):
            getattr(_mesh_resources, name, {}).clear()
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import DTensor, _redistribute
        from torch.distributed.tensor._collective_utils import MeshTopoInfo

        # Not by `torch.distributed.tensor.debug`, which takes 0.1 s to import, and needs NumPy (torch 2.13).
        propagate: Any = DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding
        getattr(propagate, "cache", propagate).cache_clear()
        # Torch before 2.13 lacks this second cache. Call it directly when we require that release.
        getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", lambda: None)()
        # Computed placements are stateful: the placement of an embedding sharded by rows has the mask of its inputs.
        _redistribute._gen_transform_infos.cache_clear()
        # These keep meshes, and so the groups, each with a thread of gloo that wakes up a hundred times a second.
        MeshTopoInfo.build_from_mesh.cache_clear()
        getattr(_redistribute, "_planner_cache", {}).clear()


def _end_at_exit() -> None:
    """End the group's threads before the interpreter ends.

    A gloo thread that has a tensor to release or a callback to run after that would end the process with
    ``terminate called without an active exception`` (seen with torch 2.13).
    """
    _wait_for_callbacks()
    failure = _uncaught_error()
    if failure is None or not is_group_owned():
        end_owned_group()
    else:
        _end_after_failure(failure)


def _wait_for_callbacks() -> None:
    """Wait until no foreign thread, such as one of gloo, runs Python code; five seconds at most."""
    deadline = time.monotonic() + _CALLBACK_WAIT_S
    time.sleep(_RELEASE_S)  # releases the GIL, so that these threads can release their tensors
    while time.monotonic() < deadline:
        known = {  # a `_DummyThread` stands for a thread of C++ code
            thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)
        }
        # Threads of C++ code run Python in a frame that `threading` does not know.
        foreign = sys._current_frames().keys() - known
        if len(foreign) <= _thread._count() + 1 - len(known):  # the script started these, by `_thread`
            return
        time.sleep(0.001)


def _uncaught_error() -> BaseException | None:
    """Return the error that ends the script; None at a regular end, and in an interactive session."""
    ipython = sys.modules.get("IPython")
    is_interactive = hasattr(sys, "ps1") or (ipython is not None and ipython.get_ipython() is not None)
    return None if is_interactive else getattr(sys, "last_value", None)


def _end_after_failure(failure: BaseException) -> None:
    """End the group after an uncaught exception, without a long wait for ranks that wait for this one.

    A collective may be pending here that no other rank will ever join, while the other ranks wait for this rank
    in another one: destroying the group would block until its timeout, half an hour by default. So a thread destroys
    it, and after five seconds the process exits without.
    """
    _Owned.has_ended.set()
    _Owned.ending.join(timeout=_FAILURE_WAIT_S)
    if _Owned.ending.is_alive():
        logging.shutdown()  # `os._exit` runs no `atexit` functions and flushes nothing
        sys.stdout.flush()
        sys.stderr.flush()
        if isinstance(
            failure, KeyboardInterrupt
        ):  # end by the signal, so that shells and launchers see an interrupt
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        os._exit(1)  # not `sys.exit`, after which the interpreter would wait for the group's threads


def _end_if_failed(has_ended: threading.Event) -> None:
    """Wait for the end of the group, and destroy it unless that has been done."""
    has_ended.wait()
    group = _Owned.group
    if group is not None and is_group_owned() and has_ended is _Owned.has_ended:
        if "nccl" in dist.get_backend_config():
            group.abort()  # else its pending collectives would block the end
        leave_group(has_failed=True)
