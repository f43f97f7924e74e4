"""The program that agrees with other machines on the ranks, as ``python -P -m accel_launch.rendezvous FLAGS``.

It is a rendezvous (`StaticRendezvous`, or one of torch's) as a service to the supervisor of one machine, which
starts and ends the ranks. Each line of the standard input is a question, as JSON, each line of the standard output an
answer:

- ``{"meet": 1}`` waits for all machines; 1 is how often the ranks of this one have started again. The answer,
  ``{"meeting": {...}}``, says which ranks this machine has, and where all meet.
- ``{"called": true}`` comes unasked, when another machine wants to start anew.
- ``{"leave": false}`` waits until the ranks of all machines have succeeded; ``{"leave": true}`` ends the run for all.

The end of the input ends the program. Of the package only `…rendezvous`, `notebook` and `xla_spawn` import torch.
"""

from __future__ import annotations

import argparse
import json
import logging
import select
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from accel_launch.foreign_tables import read_table
from accel_launch.launchers.ports import free_port
from accel_launch.messages import complain, warn

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store
    from torch.distributed.elastic.rendezvous import RendezvousHandler

    from accel_launch.static_rendezvous import StaticRendezvous

_NUM_DONE, _ALL_DONE = "accel/num-done", "accel/all-done"
# How long a machine that has succeeded waits for the others, as torchrun does.
_LEAVE_TIMEOUT_S = 300
# What a machine writes of itself, and how long that may be.
_MACHINE_TYPES = {"machine_rank": int, "num_processes": int, "restarts": int, "address": str, "port": int}
_MAX_MACHINE_BYTES = 4096


def main(argv: Sequence[str] | None = None) -> int:
    """Answer questions until the input ends; return 1 if the machines do not meet."""
    given = _parser().parse_args(argv)
    if not given.verbose:
        logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    from torch.distributed import DistError
    from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError

    try:
        Rendezvous(given).answer_questions()
    except RendezvousClosedError:
        complain("The run has ended on another machine, so the ranks of this one do not start.")
        return 1
    except (
        RendezvousError,
        DistError,
        ValueError,
    ) as error:  # a backend that nobody knows, no such address, ...
        cause = error.__cause__ if isinstance(error, RendezvousError) else None
        told = str(cause or error).partition("\n")[0]  # what follows is a stack
        complain(
            f"The machines do not meet by `--rdzv_backend {given.backend}` at `{given.endpoint}`: {told}"
        )
        return 1
    return 0


class Rendezvous:
    """The part of this machine in the meetings of all.

    Its ranks come in the order of ``--machine-rank``, and of torch's rendezvous where machines have the same.
    """

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._handler: RendezvousHandler | StaticRendezvous | None = None
        self._store: Store | None = None
        self._members: list[str] = []
        self._is_watching = False

    def answer_questions(self) -> None:
        """Answer until the input ends, or the run does.

        Raises:
            RendezvousError: If the machines do not meet.
            DistError: If the place where they meet cannot be reached.
            ValueError: If a flag is wrong.
        """
        while (question := self._next_question()) is not None:
            if "meet" in question:
                _say({"meeting": self._meet(question["meet"])})
                self._is_watching = True
            else:
                self._leave(has_failed=question["leave"])
                return

    def _next_question(self) -> dict[str, Any] | None:
        while self._is_watching and not select.select([sys.stdin], [], [], self._given.monitor_interval)[0]:
            self._look_for_calls()
        line = sys.stdin.buffer.readline()
        found: dict[str, Any] | None = json.loads(line) if line else None
        return found

    def _look_for_calls(self) -> None:
        from torch.distributed import DistError
        from torch.distributed.elastic.rendezvous.api import RendezvousError

        assert self._handler is not None
        try:
            is_called = self._handler.num_nodes_waiting() > 0
        except (RendezvousError, DistError) as error:
            warn(
                f"The other machines cannot be reached at `{self._given.endpoint}` any more, so the ranks go on but "
                f"cannot start again: {str(error.__cause__ or error).partition(chr(10))[0]}"
            )
            sys.exit(0)
        if is_called:
            _say({"called": True})
            self._is_watching = False

    def _meet(self, restarts: int) -> dict[str, Any]:
        if self._handler is None:
            self._handler = _handler_of(self._given)
        found = self._handler.next_rendezvous()
        own = {
            "machine_rank": self._given.machine_rank,
            "num_processes": self._given.num_processes,
            "restarts": restarts,
            "address": address_towards(self._given.endpoint) or socket.getfqdn(),
            "port": free_port(),
        }
        # Each round has a store of its own.
        self._store = found.store
        self._members = [f"accel/machine/{number}" for number in range(found.world_size)]
        self._store.set(self._members[found.rank], json.dumps(own))
        all_told = [machine_of(member, self._store.get(member)) for member in self._members]
        return meeting_of(all_told, found.rank)

    def _leave(self, *, has_failed: bool) -> None:
        from torch.distributed import DistError
        from torch.distributed.elastic.rendezvous.api import RendezvousError

        assert self._handler is not None
        if not has_failed and self._store is not None:
            # The machine that keeps the store may have left by the time that we hear of it.
            with suppress(DistError, RendezvousError, LookupError):
                self._wait_for_others(self._store)
        with suppress(DistError):
            self._handler.shutdown()

    def _wait_for_others(self, store: Store) -> None:
        """Wait until the ranks of all machines have succeeded, or some have not: it is too late to start them again."""
        handler = self._handler
        assert handler is not None
        if store.add(_NUM_DONE, 1) == len(self._members):
            store.set(_ALL_DONE, "")
        deadline = time.monotonic() + _LEAVE_TIMEOUT_S
        while time.monotonic() < deadline and not store.check([_ALL_DONE]):
            if handler.is_closed() or handler.num_nodes_waiting() > 0:
                return
            time.sleep(self._given.monitor_interval)


def machine_of(key: str, value: bytes) -> dict[str, Any]:
    """Return what a machine wrote of itself; raise a ValueError if a stranger wrote ``value``."""
    machine = read_table(value, _MACHINE_TYPES) if len(value) <= _MAX_MACHINE_BYTES else None
    is_sound = machine is not None and machine["num_processes"] > 0 and machine["restarts"] >= 0
    if machine is None or not is_sound or not machine["address"].isprintable():
        raise ValueError(
            f"the key `{key}` has a value that no machine of this run writes, {value[:40]!r}. Something else writes to "
            "that port: choose another `--main_process_port`, on a network that you trust."
        )
    return machine


def meeting_of(machines: Sequence[dict[str, Any]], own: int) -> dict[str, Any]:
    """Return what machine ``own`` has to know, from what each machine said of itself, in torch's order.

    The first rank is on the first machine, where all ranks meet; the number of restarts is the greatest told.
    """
    order = sorted(range(len(machines)), key=lambda number: (machines[number]["machine_rank"], number))
    group_rank = order.index(own)
    sizes = [machines[number]["num_processes"] for number in order]
    first = machines[order[0]]
    return {
        "group_rank": group_rank,
        "group_world_size": len(machines),
        "first_rank": sum(sizes[:group_rank]),
        "world_size": sum(sizes),
        "restarts": max(machine["restarts"] for machine in machines),
        "address": first["address"],
        "port": first["port"],
    }


def address_towards(endpoint: str) -> str | None:
    """Return the address of this machine on the way to ``endpoint``; None if that cannot be told."""
    host, _, port = endpoint.rpartition(":")
    if not port.isdigit():
        return None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))  # of a datagram socket: nothing is sent
        except OSError:
            return None
        return str(probe.getsockname()[0])


def _handler_of(given: argparse.Namespace) -> RendezvousHandler | StaticRendezvous:
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

    backend = given.backend
    settings: dict[str, Any] = dict(pair.split("=", 1) for pair in given.conf.split(",") if pair)
    if backend == "c10d":
        # torch guesses by the machine's name, which need not lead to the address that was given.
        settings.setdefault("is_host", str(given.machine_rank == 0).lower())
    parameters = RendezvousParameters(
        backend,
        given.endpoint,
        given.id,
        given.num_machines,
        given.num_machines,
        # torch would tell the others this machine's name, which they may not be able to resolve.
        local_addr=address_towards(given.endpoint),
        **settings,
    )
    if backend == "static":
        from accel_launch.static_rendezvous import StaticRendezvous

        # Machines that know their ranks still have to agree on each restart, which torch's `static` does not do.
        return StaticRendezvous(parameters, given.machine_rank, poll_interval_s=given.monitor_interval)
    return get_rendezvous_handler(parameters)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="accel_launch.rendezvous", allow_abbrev=False)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--id", required=True)
    parser.add_argument("--conf", default="")
    parser.add_argument("--num-machines", type=int, required=True)
    parser.add_argument("--machine-rank", type=int, required=True)
    parser.add_argument("--num-processes", type=int, required=True)
    parser.add_argument("--monitor-interval", type=float, default=0.1)
    parser.add_argument("--verbose", action="store_true")
    return parser


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
