"""The rendezvous of machines whose ranks are set: rounds that they join by plain keys of a store."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous.api import RendezvousInfo, RendezvousParameters

# How long machines wait for each other in torch's `static`.
_TIMEOUT_S = 900


class StaticRendezvous:
    """Machines 0 to ``max_nodes - 1`` meet in a store of machine 0, as often as one of them starts again.

    Stands in for a `RendezvousHandler`. torch's `static` meets once, and its `c10d` unpickles a value of the store, so
    that whoever reaches the port runs code. Here no value is interpreted: keys exist or do not.
    """

    def __init__(self, given: RendezvousParameters, machine_rank: int, *, poll_interval_s: float) -> None:
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        if unknown := given.config.keys() - {"timeout"}:
            raise ValueError(
                f"`--rdzv_conf` has `{min(unknown)}`, but `static` knows `timeout` only. Remove it."
            )
        self._num_machines, self._machine_rank = given.max_nodes, machine_rank
        self._poll_interval_s = poll_interval_s
        self._timeout_s = given.get_as_int("timeout", _TIMEOUT_S) or _TIMEOUT_S
        self._round = -1
        host, _, port = given.endpoint.rpartition(":")
        self._place = host.strip("[]"), int(port)
        timeout = timedelta(seconds=self._timeout_s)
        store = TCPStore(*self._place, None, machine_rank == 0, timeout, wait_for_workers=False)
        self._store = PrefixStore(f"accel/{given.run_id}", store)

    def next_rendezvous(self) -> RendezvousInfo:
        """Join the round that was called last, or call the next one if this machine has been in that; wait for all."""
        from torch._C._distributed_c10d import PrefixStore
        from torch.distributed.elastic.rendezvous import api

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
            time.sleep(self._poll_interval_s)
        store = PrefixStore(f"round/{self._round}", self._store)
        place = api.RendezvousStoreInfo(*self._place)
        return api.RendezvousInfo(store, self._machine_rank, self._num_machines, place)

    def num_nodes_waiting(self) -> int:
        """Return 1 if another machine has called for the next round, else 0."""
        return int(self._store.check([f"call/{self._round + 1}"]))

    def is_closed(self) -> bool:
        """Whether the run has ended on some machine."""
        return bool(self._store.check(["closed"]))

    def shutdown(self) -> bool:
        """End the run for all machines."""
        self._store.set("closed", "")
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
