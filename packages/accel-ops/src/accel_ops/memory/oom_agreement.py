"""After a try that may have run out of memory on some ranks only: the ranks agree whether to try again.

The agreement goes through the process group's store, since a rank may be waiting in a collective for the one whose
memory ran out. It has then started more collectives than that one, which a thread on each rank compares. When all
ranks have ended or wait, the rank without memory leaves the process group; the search ends with an error on all ranks.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_ops.agreement.exchange import is_debugging
from accel_ops.transport import Transport
from accel_state.arrival import begin_new_era
from accel_state.errors import StateError
from accel_state.group_exit import leave_group

Outcome = Literal["finished", "out of memory", "interrupted"]

_SLICE = timedelta(seconds=10)
"""How long one request waits at the store. Others of this process, such as NCCL's watchdog, wait meanwhile."""
_COMPARE_EVERY_S = 0.5


class Try:
    """One try of a function that every rank calls; all ranks make the same tries in the same order."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._awaited: int | None = None  # the rank without memory for which this one waits in a collective
        if transport.world_size == 1:
            return
        store = PrefixStore("accel_tries", transport.store)
        number = store.add(f"tries of {transport.rank}", 1)
        self._store: Store = PrefixStore(str(number), store)
        self._before = _num_collectives({})
        self._has_ended = threading.Event()
        threading.Thread(target=self._compare, name="accel-memory").start()

    def must_repeat(self, outcome: Outcome) -> bool:
        """Report how the try ended here, wait for the other ranks, and return whether to try again.

        Each rank makes a handful of requests and then waits for one key, which the last rank sets.

        Args:
            outcome: How the try ended. A rank is ``"interrupted"`` if it gave up an operation because
                another rank did not come to it.

        Raises:
            StateError: If another rank failed, or waited in a collective for one without memory.
        """
        if self._transport.world_size == 1:
            return outcome == "out of memory"
        self._has_ended.set()
        if outcome == "out of memory":
            self._store.set("collectives", json.dumps(_num_collectives(self._before)))
            self._store.set("out of memory", str(self._transport.rank))
        self._count_ended()
        verdict, _, rank = self._verdict().partition(" ")
        if verdict == "awaited":
            if outcome == "out of memory" and dist.is_initialized():
                cast(Any, dist.group.WORLD).abort()
                leave_group()
            raise StateError(
                f"Memory ran out on process {rank} while other processes waited for it in a collective, which cannot "
                "be repeated. Start with a smaller batch size."
            )
        if verdict == "failed":
            own = " Memory had run out on this process." if outcome == "out of memory" else ""
            raise StateError(f"Process {rank} failed, so this process cannot go on. See its error.{own}")
        if verdict == "repeat" and is_debugging():
            begin_new_era(self._transport.store, rank=self._transport.rank)
        return verdict == "repeat"

    def fail(self) -> None:
        """Report that this rank raises an error, which ends the search on all ranks; wait for nobody."""
        if self._transport.world_size > 1 and self._awaited is None:
            self._has_ended.set()
            self._conclude(f"failed {self._transport.rank}")

    def rank_out_of_memory(self) -> int | None:
        """Return a rank that has reported to be out of memory in this try, None if there is none yet."""
        if self._transport.world_size == 1 or self._awaited is not None:
            return self._awaited
        return int(self._store.get("out of memory")) if self._store.check(["out of memory"]) else None

    def _count_ended(self) -> None:
        if self._store.add("ended", 1) == self._transport.world_size:
            rank = self.rank_out_of_memory()
            repeated = f"awaited {rank}" if self._store.check(["awaited"]) else "repeat"
            self._conclude("done" if rank is None else repeated)

    def _conclude(self, verdict: str) -> None:
        """Set the verdict, unless another rank already has."""
        self._store.compare_set("verdict", "", verdict)

    def _verdict(self) -> str:
        while not self._store.check(["verdict"]):
            # The kinds of store raise different errors when time is up, all of them this one. A lost store fails above.
            with contextlib.suppress(RuntimeError):
                self._store.wait(["verdict"], _SLICE)
        return self._store.get("verdict").decode()

    def _compare(self) -> None:
        """Report if this rank has started a collective that a rank without memory has not."""
        while not self._has_ended.wait(_COMPARE_EVERY_S):
            rank = self.rank_out_of_memory()
            if rank is None:
                continue
            theirs = json.loads(self._store.get("collectives"))
            ours = _num_collectives(self._before)
            if any(ours[name] > count for name, count in theirs.items() if name in ours):
                self._store.set("awaited", "")
                self._awaited = rank
                self._count_ended()
                cast(Any, dist.group.WORLD).abort()
                return


def _num_collectives(before: Mapping[str, int]) -> dict[str, int]:
    """Return how many collectives this rank has started since ``before``, by group and type of device."""
    counts: dict[str, int] = {}
    for group in list(dist.distributed_c10d._world.pg_map):
        for device_type, backend in (pair.split(":") for pair in dist.get_backend_config(group).split(",")):
            if backend in ("gloo", "nccl"):
                name = f"{group.group_name} {device_type}"
                of_backend = cast(Any, group)._get_backend(torch.device(device_type))
                counts[name] = of_backend._get_sequence_number_for_group() - before.get(name, 0)
    return counts
