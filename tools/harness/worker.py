"""One rank of a world, which stays alive and runs the calls it is sent."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import pickle
import random
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import PurePath
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from accel_ops import send_to_device
from accel_state.environment import restore, snapshot
from accel_state.errors import StateError
from accel_state.group_exit import is_group_owned, leave_group
from accel_state.partial_state import PartialState
from accel_state.runtime import reset_runtime
from tools.harness.imported_objects import ImportedObjects
from tools.harness.leaks import changed_variables
from tools.harness.remote_calls import Call, Outcome

TIMEOUT = timedelta(seconds=30)
_PLAIN = (str, int, float, PurePath, range, Counter)


class Worker:
    """A rank and its connection to the test that drives it."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        line: Connection[Outcome, tuple[Call, str | None] | None],
        device_type: str,
    ) -> None:
        self.device_type = device_type
        self.rank = rank
        self.world_size = world_size
        self.line = line
        self.imported = ImportedObjects()

    def serve(self) -> None:
        """Report that this rank is ready, then run calls until the connection is closed. None: leave all groups."""
        self.line.send(Outcome())
        while True:
            try:
                order = self.line.recv()
            except EOFError:
                return
            if order is None:
                self.leave_groups()
            else:
                self.line.send(self.run(*order))

    def run(self, call: Call, rendezvous: str | None) -> Outcome:
        """Run one call with fresh state; ``rendezvous`` is the file for a new process group, if one is needed."""
        environ = snapshot()
        try:
            self.set_up(rendezvous)
            result = call()
            if self.device_type != "cpu":
                result = send_to_device(result, "cpu")
            self.check_clean(environ)
            return Outcome(
                pickle.dumps(result), has_intact_group=has_only_default_group() and is_group_owned()
            )
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 -- the test should see it
            return Outcome.of_error(error)
        finally:
            restore(environ)

    def set_up(self, rendezvous: str | None) -> None:
        """Build the state, on a new process group if ``rendezvous`` is given, else on the last one."""
        reset_runtime(keep_process_group=rendezvous is None)
        self.imported.freeze()
        random.seed(0)
        torch.manual_seed(0)
        where: dict[str, Any] = {"cpu": self.device_type == "cpu"}
        if rendezvous is not None:
            where |= {"backend": "gloo"} if where["cpu"] else {}
            where |= {"init_method": f"file://{rendezvous}", "timeout": TIMEOUT}
            where |= {"rank": self.rank, "world_size": self.world_size}
        PartialState(**where)

    def leave_groups(self) -> None:
        """Leave all process groups: each has a thread that wakes up a hundred times a second."""
        reset_runtime()
        if dist.is_initialized():
            leave_group()
        gc.collect()  # objects left by the body refer to its groups

    def check_clean(self, environ: dict[str, str]) -> None:
        """Raise if the body changed environment variables."""
        changed = changed_variables(environ, snapshot())
        if changed:
            raise StateError(f"The body left environment variables changed: {', '.join(changed)}.")


def has_only_default_group() -> bool:
    """Return True if there is the default process group and no other."""
    return dist.is_initialized() and len(dist.distributed_c10d._world.pg_map) == 1


def watch_parent() -> None:
    """End this process when its standard input closes, however the parent ends; describe it for each byte there."""

    def watch() -> None:
        # Not through `sys.stdin`, whose lock Python wants at its end.
        while os.read(0, 1):
            os.write(2, "".join(_frames()).encode())
        os._exit(1)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()


def _frames() -> Iterator[str]:
    """Yield where each thread is in accel, with plain values: topic, keys and rounds of an agreement, paths."""
    for frame in sys._current_frames().values():
        for inner, line in traceback.walk_stack(frame):
            if inner.f_globals.get("__name__", "").startswith("accel"):
                found = {**inner.f_locals, **getattr(inner.f_locals.get("self"), "__dict__", {})}
                values = [f"{name}={str(value)[:300]}" for name, value in found.items() if _is_plain(value)]
                yield f"{inner.f_code.co_qualname}, line {line}: {', '.join(values)}\n"


def _is_plain(value: Any) -> bool:
    return isinstance(value, _PLAIN) or (isinstance(value, list) and all(map(_is_plain, value)))


def main() -> NoReturn:
    """Serve one rank until the test session ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument(
        "--line", type=int, required=True, help="file descriptor of the connection to the test"
    )
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    watch_parent()
    torch.set_num_threads(1)
    worker = Worker(arguments.rank, arguments.world_size, Connection(arguments.line), arguments.device)
    worker.serve()
    worker.leave_groups()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # taking torch and all that bodies imported apart takes a second


if __name__ == "__main__":
    main()
