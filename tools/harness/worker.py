"""One rank of a world, which stays alive and runs the calls it is sent."""

from __future__ import annotations

import faulthandler
import gc
import importlib.util
import os
import pickle
import random
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import PurePath
from typing import Any, NoReturn

import torch.distributed as dist

from accel_state.errors import StateError
from accel_state.group_exit import is_group_owned, leave_group
from accel_state.partial_state import PartialState
from accel_state.runtime import reset_runtime
from tools.harness.fork_server import STACKS_SIGNAL
from tools.harness.leaks import ProcessSnapshot, freeze_imported_objects, reset_libraries
from tools.harness.world import Call, Outcome

_PLAIN = (str, int, float, PurePath, range, Counter)


def main() -> NoReturn:
    """Report that this rank is ready, then run calls until the connection is closed. None: leave all groups."""
    faulthandler.enable()
    faulthandler.register(STACKS_SIGNAL)
    threading.Thread(target=_watch_parent, name="watch-parent", daemon=True).start()
    device_type, rank, world_size, file_descriptor = sys.argv[1], *map(int, sys.argv[2:])
    line: Connection[Outcome, tuple[Call, str | None] | None] = Connection(file_descriptor)
    line.send(Outcome())
    where = {"timeout": timedelta(seconds=30), "rank": rank, "world_size": world_size}
    with_gloo = {"backend": "gloo"} if device_type == "cpu" else {}
    while True:
        try:
            order = line.recv()
        except EOFError:
            break
        if order is None:
            _leave_groups()
        else:
            call, rendezvous = order
            group = {"init_method": f"file://{rendezvous}", **where, **with_gloo} if rendezvous else {}
            line.send(_outcome(call, group, device_type))
    _leave_groups()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking torch and all that bodies imported apart takes a second


def _outcome(call: Call, group: dict[str, Any], device_type: str) -> Outcome:
    """Run one call with fresh state, on the last process group or a new one with these options."""
    before = ProcessSnapshot.now()
    del before.settings["the process group"]  # the next call may use it
    try:
        reset_runtime(keep_process_group=not group)
        freeze_imported_objects()
        random.seed(0)
        reset_libraries()
        PartialState(cpu=device_type == "cpu", **group)
        _import(call.module, call.file)
        function, args, kwargs = pickle.loads(call.what)
        result = function(*args, **kwargs)
        if device_type != "cpu":
            from accel_ops import send_to_device  # the environment of accel-state alone lacks it

            result = send_to_device(result, "cpu")
        if leaks := before.leaks_since():
            raise StateError(f"The body left behind {'; '.join(leaks)}.")
        has_only_default_group = dist.is_initialized() and len(dist.distributed_c10d._world.pg_map) == 1
        return Outcome(pickle.dumps(result), has_intact_group=has_only_default_group and is_group_owned())
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 -- the test should see it
        trace = "".join(traceback.format_exception(error))
        try:
            data = pickle.dumps(error)
            pickle.loads(data)  # the arguments of many are not those that they keep
        except (pickle.PicklingError, TypeError, AttributeError):
            return Outcome(trace=trace)
        return Outcome(error=data, trace=trace)
    finally:
        before.put_back()


def _import(name: str, file: str) -> None:
    """Import a file under a name, once: pickles of its functions and classes find them there."""
    if getattr(sys.modules.get(name), "__file__", None) != file:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        folder = str(PurePath(file).parent)
        sys.path.append(folder)  # as for a script: it may import what is next to it
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(folder)


def _leave_groups() -> None:
    """Leave all process groups: each has a thread that wakes up a hundred times a second."""
    reset_runtime()
    if dist.is_initialized():
        leave_group()
    gc.collect()  # objects left by the body refer to its groups


def _watch_parent() -> None:
    """End this process when its standard input closes, however the parent ends; describe it for each byte there."""
    while os.read(0, 1):  # not through `sys.stdin`, whose lock Python wants at its end
        os.write(2, "".join(_frames()).encode())
    os._exit(1)


def _frames() -> Iterator[str]:
    """Yield where each thread is in accel, with plain values: topic, keys and rounds of an agreement, paths."""
    for frame in sys._current_frames().values():
        for inner, line in traceback.walk_stack(frame):
            if inner.f_globals.get("__name__", "").startswith("accel"):
                variables = {**inner.f_locals, **getattr(inner.f_locals.get("self"), "__dict__", {})}
                told = [f"{name}={str(value)[:300]}" for name, value in variables.items() if _is_plain(value)]
                yield f"{inner.f_code.co_qualname}, line {line}: {', '.join(told)}\n"


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(map(_is_plain, value)))
