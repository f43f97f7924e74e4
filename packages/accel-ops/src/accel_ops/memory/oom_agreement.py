"""After a try that may have run out of memory on some ranks only: the ranks agree whether to try again.

The agreement goes through the process group's store, since a rank may never come: it may be waiting in a
collective for the rank whose memory ran out. Such a wait cannot be ended from outside. It lasts until the
group's timeout; then that rank's error ends the search on all ranks with a message that says why. (On NCCL
the watchdog may end the process instead.)
"""

from __future__ import annotations

from datetime import timedelta
from typing import Literal

import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_ops.agreement.arrival import begin_new_era
from accel_ops.agreement.exchange import is_debugging
from accel_ops.transport import Transport
from accel_state.errors import StateError

Outcome = Literal["finished", "out of memory", "interrupted"]

_SLICE = timedelta(seconds=10)
"""How long one request waits at the store. Others of this process, such as NCCL's watchdog, wait meanwhile."""


class Try:
    """One try of a function that every rank calls; all ranks make the same tries in the same order."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        if transport.world_size == 1:
            return
        store = PrefixStore("accel_tries", transport.store)
        number = store.add(f"tries of {transport.rank}", 1)
        self._store: Store = PrefixStore(str(number), store)

    def must_repeat(self, outcome: Outcome, *, limit_s: float | None = None) -> bool:
        """Report how the try ended here, wait for the other ranks, and return whether to try again.

        Each rank makes a handful of requests and then waits for one key, which the last rank sets.

        Args:
            outcome: How the try ended. A rank is ``"interrupted"`` if it gave up an operation because
                another rank did not come to it.
            limit_s: How long to wait for the others, in seconds; without end by default.

        Raises:
            StateError: If another rank failed, or does not end its try in time.
        """
        if self._transport.world_size == 1:
            return outcome == "out of memory"
        if outcome == "out of memory":
            self._store.set("out of memory", str(self._transport.rank))
        if self._store.add("ended", 1) == self._transport.world_size:
            self._conclude("repeat" if self.rank_out_of_memory() is not None else "done")
        verdict = self._verdict(limit_s)
        if verdict.startswith("failed"):
            own = " Memory had run out on this process." if outcome == "out of memory" else ""
            rank = verdict.split()[1]
            raise StateError(f"Process {rank} failed, so this process cannot go on. See its error.{own}")
        if verdict == "repeat" and is_debugging():
            begin_new_era(self._transport)
        return verdict == "repeat"

    def fail(self) -> None:
        """Report that this rank raises an error, which ends the search on all ranks; wait for nobody."""
        if self._transport.world_size > 1:
            self._conclude(f"failed {self._transport.rank}")

    def rank_out_of_memory(self) -> int | None:
        """Return a rank that has reported to be out of memory in this try, None if there is none yet."""
        if self._transport.world_size == 1 or not self._store.check(["out of memory"]):
            return None
        return int(self._store.get("out of memory"))

    def _conclude(self, verdict: str) -> None:
        """Set the verdict, unless another rank already has."""
        self._store.compare_set("verdict", "", verdict)

    def _verdict(self, limit_s: float | None) -> str:
        waited = timedelta()
        while not self._store.check(["verdict"]):
            if limit_s is not None and waited.total_seconds() >= limit_s:
                self.fail()
                raise StateError(
                    f"Memory ran out on this process, and the others did not end their try within {limit_s:g} "
                    "seconds. Start with a smaller batch size."
                )
            try:
                self._store.wait(["verdict"], _SLICE)
            except dist.DistNetworkError:
                raise  # the store is gone, and with it the process that holds it
            except (
                RuntimeError
            ):  # time is up: the kinds of store raise different errors, all of them this one
                waited += _SLICE
        return self._store.get("verdict").decode()
