"""Release DDP's reducers before interpreter shutdown, so that the process group can end."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import ClassVar

from torch.nn.parallel import DistributedDataParallel


class _Wrapped:
    """The models that were wrapped, and in which process; a forked child has no threads to end."""

    models: ClassVar[weakref.WeakSet[DistributedDataParallel]] = weakref.WeakSet()
    pid: int | None = None


def release_at_exit(model: DistributedDataParallel) -> None:
    """Make ``model`` release its process group when the interpreter ends, if it is still alive then.

    Otherwise the group outlives ``destroy_process_group``, and its threads the interpreter: a gloo thread
    that lets go of a gradient at that moment ends the process with ``terminate called without an active
    exception`` (torch 2.13, one run in twelve on a busy machine).
    """
    if _Wrapped.pid != os.getpid():
        _Wrapped.pid = os.getpid()
        _Wrapped.models = weakref.WeakSet()
        # Before what ends the group, which was registered when the group was set up.
        atexit.register(release_all)
    _Wrapped.models.add(model)


def release_all() -> None:
    """Remove reducer, logger and group from all wrapped models; they cannot be trained afterwards."""
    if _Wrapped.pid != os.getpid():
        return
    for model in list(_Wrapped.models):
        # Last of all the Python object of the group, which waits for the threads without the interpreter lock.
        group = model.__dict__.pop("process_group", None)
        for name in ("reducer", "logger"):
            model.__dict__.pop(name, None)
        del group
