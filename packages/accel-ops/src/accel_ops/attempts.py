"""Agree, after a try that may have failed on some ranks only, whether all of them try again.

The word goes through the process group's store, since the ranks may be anywhere in their collectives: the
rank whose memory ran out has left the one in which the others wait for it. When they do not come within a
few seconds, that rank leaves the process group. On gloo this ends the waiting of the others with an error,
which they recognise by the word in the store; then all of them build the group anew. (On NCCL a rank that
waits inside a collective can only be ended by its own watchdog, so there the others must reach the end of
their try by themselves.)
"""

from __future__ import annotations

import time
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel_ops.transport import current_transport
from accel_state.errors import StateError
from accel_state.process_group import backend_of_group, create_owned_group, leave_group

Outcome = Literal["finished", "out of memory", "interrupted", "failed"]

GRACE_S = 3.0
"""How long the rank whose memory ran out waits for the others before it leaves the group."""
PATIENCE_S = 1800.0
"""How long a rank waits for the others to end their try, as long as torch waits in a collective."""
_POLL_S = 0.05
_REPEATING = ("out of memory", "interrupted")


class _Counter:
    """Number of the last try on a store; all ranks make the same tries, so all count alike."""

    store: Store | None = None
    number = 0


class Attempt:
    """One try of a function that every rank of the process group calls."""

    def __init__(self) -> None:
        transport = current_transport()
        self._rank = transport.rank
        self._world_size = transport.world_size
        self._group = dist.group.WORLD if self._world_size > 1 else None
        if self._world_size > 1:
            store = transport.store
            if _Counter.store is not store:
                _Counter.store, _Counter.number = store, 0
            _Counter.number += 1
            self._store = PrefixStore(f"accel_attempt/{_Counter.number}", store)

    def must_repeat(self, outcome: Outcome) -> bool:
        """Tell the others how the try ended here, wait for them, and return whether memory ran out anywhere.

        Blocks until every rank has ended its try, except after a failure: then it returns at once, and the
        error is to be raised.

        Raises:
            StateError: If another rank failed, or a rank does not end its try.
        """
        if self._world_size == 1:
            return outcome == "out of memory"
        if outcome == "failed" and self._told("out of memory"):
            outcome = "interrupted"
        self._store.set(str(self._rank), outcome)
        if outcome == "failed":
            return False
        self._wait_for_all(outcome)
        if self._store.compare_set("group", "", "kept") == b"given up":
            self._build_group_anew()
        return any(self._told(repeating) for repeating in _REPEATING)

    def _told(self, outcome: str) -> list[int]:
        """Return the ranks that have told this outcome."""
        told = [rank for rank in range(self._world_size) if self._store.check([str(rank)])]
        return [rank for rank in told if self._store.get(str(rank)).decode() == outcome]

    def _wait_for_all(self, outcome: Outcome) -> None:
        begin = time.monotonic()
        while True:
            missing = [rank for rank in range(self._world_size) if not self._store.check([str(rank)])]
            failed = self._told("failed")
            if failed:
                raise StateError(f"Process {failed[0]} failed, so this process cannot go on. See its error.")
            if not missing:
                return
            waited_s = time.monotonic() - begin
            is_given_up = self._store.check(["group"]) and self._store.get("group") == b"given up"
            if is_given_up or (outcome == "out of memory" and waited_s > GRACE_S):
                self._give_up_group()
            if waited_s > PATIENCE_S:
                raise StateError(f"Process {missing[0]} did not end its try within {PATIENCE_S:g} seconds.")
            time.sleep(_POLL_S)

    def _give_up_group(self) -> None:
        """Leave the process group, which releases the ranks that wait for this one."""
        if self._group is None or not dist.is_initialized():
            return
        self._store.compare_set("group", "", "given up")
        if len(dist.distributed_c10d._world.pg_map) > 1:
            raise StateError(
                "Memory ran out on a process while others waited for it in a collective. The process "
                "group would "
                "have to be built anew, but further groups exist beside it. Create them inside of the "
                "function "
                "that is tried, or start with a smaller batch size."
            )
        self._settings: dict[str, Any] = {
            "backend": backend_of_group(),
            "timeout": self._group._get_backend(_a_device(self._group)).options._timeout,
        }
        self._group = None
        self._was_owned = leave_group(release_others=True)

    def _build_group_anew(self) -> None:
        self._give_up_group()
        create = create_owned_group if self._was_owned else dist.init_process_group
        create(
            **self._settings,
            store=PrefixStore("group", self._store),
            rank=self._rank,
            world_size=self._world_size,
        )


def _a_device(group: dist.ProcessGroup) -> torch.device:
    return torch.device(dist.get_backend_config(group).split(",")[0].split(":")[0])
