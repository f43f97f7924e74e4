"""The rendezvous of machines whose ranks are set, for torch's elastic agent: rounds joined by plain keys of a store."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistError
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousParameters,
    api,
    rendezvous_handler_registry,
)

from accel_launch.messages import warn, write_beside

BACKEND = "accel-static"
# How long machines wait for each other in torch's `static`, and how often they look.
_TIMEOUT_S = 900
_POLL_INTERVAL_S = 0.1


class StaticRendezvous(RendezvousHandler):
    """Machines 0 to ``max_nodes - 1`` meet in a store of machine 0, as often as one of them starts again.

    torch's `static` meets once, and its `c10d` unpickles a value of the store, so that whoever reaches the port runs
    code. Here keys exist or do not, and the one value, the address of rank 0, is text.
    """

    use_agent_store = False

    def __init__(self, given: RendezvousParameters) -> None:
        if unknown := given.config.keys() - {"timeout", "rank"}:
            raise ValueError(
                f"`--rdzv_conf` has `{min(unknown)}`, but `static` knows `timeout` only. Remove it."
            )
        self._given = given
        self._num_machines, self._machine_rank = given.max_nodes, int(given.config["rank"])
        self._timeout_s = given.get_as_int("timeout", _TIMEOUT_S) or _TIMEOUT_S
        self._round = -1
        self._is_lost = False
        host, _, port = given.endpoint.rpartition(":")
        timeout = timedelta(seconds=self._timeout_s)
        store = TCPStore(
            host.strip("[]"), int(port), None, self._machine_rank == 0, timeout, wait_for_workers=False
        )
        self._store = PrefixStore(f"accel/{given.run_id}", store)

    @property
    def num_restarts(self) -> int:
        """How often the machines have met again, which each of them may have called for."""
        return self._round

    def get_backend(self) -> str:
        return BACKEND

    def get_run_id(self) -> str:
        return self._given.run_id

    def next_rendezvous(self) -> api.RendezvousInfo:
        """Join the round that was called last, or call the next one if this machine has been in that; wait for all."""
        self._join()
        deadline = time.monotonic() + self._timeout_s
        while missing := [rank for rank in range(self._num_machines) if not self._has_joined(rank)]:
            if self.is_closed():
                raise api.RendezvousClosedError
            if self.num_nodes_waiting():
                self._join()
            if time.monotonic() > deadline:
                raise api.RendezvousTimeoutError(
                    f"no launch with `--machine_rank {missing[0]}` joined within {self._timeout_s} s. Start one on "
                    "each machine, or raise `--rdzv_conf timeout=SECONDS`."
                )
            time.sleep(_POLL_INTERVAL_S)
        if self._round:
            write_beside(f"The ranks of all machines start again, for the {self._round}. time.")
        store = PrefixStore(f"round/{self._round}", self._store)
        place = api.RendezvousStoreInfo.build(self._machine_rank, store, self._given.local_addr)
        return api.RendezvousInfo(store, self._machine_rank, self._num_machines, place)

    def num_nodes_waiting(self) -> int:
        """Return 1 if another machine has called for the next round, else 0."""
        try:
            return int(self._store.check([f"call/{self._round + 1}"]))
        except DistError as error:
            if not self._is_lost:
                warn(
                    f"The other machines cannot be reached at `{self._given.endpoint}` any more, so the ranks go on "
                    f"but cannot start again: {str(error).partition(chr(10))[0]}"
                )
            self._is_lost = True
            return 0

    def is_closed(self) -> bool:
        """Whether the run has ended on some machine."""
        return bool(self._store.check(["closed"]))

    def set_closed(self) -> None:
        """End the run for all machines."""
        with suppress(DistError):  # machine 0 has left
            self._store.set("closed", "")

    def shutdown(self) -> bool:
        self.set_closed()
        return True

    def _join(self) -> None:
        is_new, last = self._round < 0, self._round
        self._round = max(self._round, 0)
        while self.num_nodes_waiting():
            self._round += 1
        # A launch that takes the place of one that was killed comes to a round that has its rank already.
        if self._round == last or (is_new and self._has_joined(self._machine_rank)):
            self._round += 1
            self._store.set(f"call/{self._round}", "")
        if self._store.add(self._key(rank := self._machine_rank), 1) > 1:
            raise ValueError(f"another launch has `--machine_rank {rank}`, too. Give each machine its own.")

    def _has_joined(self, rank: int) -> bool:
        return bool(self._store.check([self._key(rank)]))

    def _key(self, rank: int) -> str:
        return f"round/{self._round}/joined/{rank}"


rendezvous_handler_registry.register(BACKEND, StaticRendezvous)
