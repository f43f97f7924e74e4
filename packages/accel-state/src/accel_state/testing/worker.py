"""One rank of a world that stays alive and runs what it is sent: ``python -m accel_state.testing.worker``."""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
from datetime import timedelta
from multiprocessing.connection import Connection

import torch
import torch.distributed as dist

from accel_state.environment import restore, snapshot
from accel_state.errors import StateError
from accel_state.partial_state import PartialState
from accel_state.process_group import is_group_owned
from accel_state.runtime import reset_runtime
from accel_state.testing.garbage import Libraries
from accel_state.testing.leaks import changed_variables
from accel_state.testing.shipping import Call, Outcome

TIMEOUT = timedelta(seconds=30)


class Worker:
    """A rank: its place in the world, and the line to the test that drives it."""

    def __init__(
        self, rank: int, world_size: int, line: Connection[Outcome, tuple[Call, str | None]]
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.line = line
        self.libraries = Libraries()

    def serve(self) -> None:
        """Say that this rank is there, then run calls until the line is closed."""
        self.line.send(Outcome())
        while True:
            try:
                call, rendezvous = self.line.recv()
            except EOFError:
                return
            self.line.send(self.run(call, rendezvous))

    def run(self, call: Call, rendezvous: str | None) -> Outcome:
        """Run one call with fresh state; ``rendezvous`` names the file at which to meet for a new group."""
        environ = snapshot()
        try:
            self.set_up(rendezvous)
            result = call()
            self.check_clean(environ)
            return Outcome.of_result(result, has_intact_group=has_only_default_group() and is_group_owned())
        except (Exception, SystemExit, KeyboardInterrupt) as error:  # noqa: BLE001 -- the test shall see it
            return Outcome.of_error(error)
        finally:
            restore(environ)

    def set_up(self, rendezvous: str | None) -> None:
        """Build the state, on a new process group if ``rendezvous`` says where to meet, else on the last."""
        reset_runtime(keep_process_group=rendezvous is None)
        self.libraries.spare()
        if rendezvous is not None and dist.is_initialized():  # the last body made a group of its own
            dist.destroy_process_group()
        random.seed(0)
        torch.manual_seed(0)
        if rendezvous is None:
            PartialState(cpu=True)
        else:
            PartialState(
                cpu=True,
                backend="gloo",
                init_method=f"file://{rendezvous}",
                rank=self.rank,
                world_size=self.world_size,
                timeout=TIMEOUT,
            )

    def check_clean(self, environ: dict[str, str]) -> None:
        """Refuse a body that changed the environment for those after it."""
        changed = changed_variables(environ, snapshot())
        if changed:
            raise StateError(f"The body left environment variables changed: {', '.join(changed)}.")


def has_only_default_group() -> bool:
    """Tell whether the next body finds the process group as this one found it."""
    return dist.is_initialized() and len(dist.distributed_c10d._world.pg_map) == 1


def die_with_parent() -> None:
    """End this process when its standard input closes, which happens however the parent ends."""

    def watch() -> None:
        # Not through `sys.stdin`, whose lock Python wants at its end.
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=watch, name="die-with-parent", daemon=True).start()


def main() -> int:
    """Serve one rank until the test session ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world-size", type=int, required=True)
    parser.add_argument(
        "--line", type=int, required=True, help="file descriptor of the connection to the test"
    )
    arguments = parser.parse_args()
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    die_with_parent()
    torch.set_num_threads(1)
    Worker(arguments.rank, arguments.world_size, Connection(arguments.line)).serve()
    reset_runtime()
    # The way out waits for whoever holds a process group: let it not be garbage that a body left.
    gc.unfreeze()
    gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
