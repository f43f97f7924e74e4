"""The ranks tell each other how a step went, beside the collectives of training and from any thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel_state.errors import CheckpointError

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05
_num_agreements: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
"""How many were made on a group, so that the notes of one are never taken for those of another."""


class Agreement(Protocol):
    """Rounds in which every rank gives one note and gets those of all."""

    rank: int
    world_size: int

    def exchange(self, topic: str, note: str) -> list[str]:
        """Return the notes of all ranks on ``topic``, in rank order; blocks until all have given theirs.

        Args:
            topic: The same on every rank, and never used twice.
            note: What this rank has to say.

        Raises:
            CheckpointError: If a rank has given none before the deadline.
        """
        ...

    def forget(self, topic: str) -> None:
        """Drop this rank's note on a topic that every rank is done with."""
        ...


class Alone:
    """One process agrees with itself."""

    rank = 0
    world_size = 1

    def exchange(self, topic: str, note: str) -> list[str]:
        """Return the note."""
        return [note]

    def forget(self, topic: str) -> None:
        """Do nothing: nothing was kept."""


class StoreAgreement:
    """Notes in the store of the process group.

    Args:
        store: The store.
        rank: This process.
        world_size: How many there are.
        deadline_s: How long to wait for the others; the group's own timeout is a good choice.
    """

    def __init__(self, store: Store, *, rank: int, world_size: int, deadline_s: float) -> None:
        self._store = store
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s

    def exchange(self, topic: str, note: str) -> list[str]:
        """Return the notes of all ranks."""
        self._store.set(f"{topic}/{self.rank}", note)
        end_s = time.monotonic() + self.deadline_s
        missing = set(range(self.world_size))
        # Asked again and again rather than waited for: a waiting call would keep the store from other threads.
        wait_s = _FIRST_WAIT_S
        while missing := {rank for rank in missing if not self._store.check([f"{topic}/{rank}"])}:
            if time.monotonic() > end_s:
                raise CheckpointError(
                    f"Rank {', '.join(map(str, sorted(missing)))} did not come to `{topic}` within "
                    f"{self.deadline_s:g} s. It may have failed; see its output."
                )
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        return [self._store.get(f"{topic}/{rank}").decode() for rank in range(self.world_size)]

    def forget(self, topic: str) -> None:
        """Drop this rank's note."""
        self._store.delete_key(f"{topic}/{self.rank}")


class CollectiveAgreement:
    """Notes by an object collective, for devices whose processes have no store in common.

    Args:
        gather: Returns the objects of all ranks in a list.
        rank: This process.
        world_size: How many there are.
    """

    def __init__(self, gather: Callable[[list[str]], list[str]], *, rank: int, world_size: int) -> None:
        self._gather = gather
        self.rank = rank
        self.world_size = world_size

    def exchange(self, topic: str, note: str) -> list[str]:
        """Return the notes of all ranks."""
        return self._gather([note])

    def forget(self, topic: str) -> None:
        """Do nothing: nothing was kept."""


def agreement_of(*, rank: int, world_size: int, gather: Callable[[list[str]], list[str]]) -> Agreement:
    """Return the way in which the ranks of this run agree.

    Args:
        rank: This process.
        world_size: How many there are.
        gather: An object collective, used where there is no process group.
    """
    if world_size == 1:
        return Alone()
    if not dist.is_available() or not dist.is_initialized():
        return CollectiveAgreement(gather, rank=rank, world_size=world_size)
    group = dist.group.WORLD
    assert group is not None
    store = group.get_group_store()
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]  # torch's stubs lack it
    number = _num_agreements[group] = _num_agreements.get(group, 0) + 1
    scoped = PrefixStore(f"accel_checkpoint_{number}", store)
    return StoreAgreement(scoped, rank=rank, world_size=world_size, deadline_s=timeout.total_seconds())
