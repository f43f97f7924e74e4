"""The ranks tell each other how a step went, beside the collectives of training and from any thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import NoReturn, Protocol
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel.checkpoints.liveness import Liveness
from accel_state.errors import CheckpointError
from accel_state.group_store import store_of

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05
_LOOK_S = 0.5
"""How often to look whether those that are missing can still come."""
_FAREWELL_S = 10.0
"""How long rank 0 waits at most until the others have read what was agreed on."""
_FAREWELL_WAIT_S = 0.005
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

    A rank that stops waiting leaves word of it, so that nobody waits for that rank in turn.

    Args:
        store: The store.
        rank: This process.
        world_size: How many there are.
        deadline_s: How long to wait for the others; the group's own timeout is a good choice.
        liveness: Tells which ranks have ended, for which nobody waits.
    """

    def __init__(
        self, store: Store, *, rank: int, world_size: int, deadline_s: float, liveness: Liveness
    ) -> None:
        self._store = store
        self._liveness = liveness
        self._has_given_up = False
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s

    def exchange(self, topic: str, note: str) -> list[str]:
        """Return the notes of all ranks."""
        try:
            self._leave(topic, note)
            self._wait(topic)
            notes = self._notes(topic)
            self._see_all_off(topic)
            return notes
        except dist.DistError as error:
            raise CheckpointError(
                f"The ranks cannot agree on `{topic}`: the store of the process group does not answer "
                f"({str(error).splitlines()[0]}). Rank 0, or the launcher, which keeps it, has ended."
            ) from error

    def forget(self, topic: str) -> None:
        """Drop this rank's note."""
        shared = ("count", "all", "readers", "read") if self.rank == 0 else ()
        keys = [f"{topic}/{name}" for name in (self.rank, f"read/{self.rank}", *shared)]
        with contextlib.suppress(dist.DistError):  # who keeps the store may have left; all is done
            for key in keys:
                self._store.delete_key(key)

    def _leave(self, topic: str, note: str) -> None:
        if self._has_given_up:
            self._store.set(f"gave-up/{self.rank}", "")
            self._has_given_up = False
        self._store.set(f"{topic}/{self.rank}", note)
        if self._store.add(f"{topic}/count", 1) == self.world_size:
            self._store.set(f"{topic}/all", "")

    def _notes(self, topic: str) -> list[str]:
        """Return what all ranks have left, in one request where the store can do that."""
        keys = [f"{topic}/{rank}" for rank in range(self.world_size)]
        if self._store.has_extended_api():  # type: ignore[attr-defined]  # torch's stubs lack it
            return [note.decode() for note in self._store.multi_get(keys)]
        return [self._store.get(key).decode() for key in keys]

    def _wait(self, topic: str) -> None:
        """Return when all notes are there."""
        end_s = time.monotonic() + self.deadline_s
        look_s = time.monotonic() + _LOOK_S
        # Asked again and again rather than waited for: a waiting call would keep the store from other threads.
        wait_s = _FIRST_WAIT_S
        while not self._store.check([f"{topic}/all"]):
            now_s = time.monotonic()
            if now_s > min(look_s, end_s):
                look_s = now_s + _LOOK_S
                self._look_for(topic, is_over=now_s > end_s)
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    def _see_all_off(self, topic: str) -> None:
        """Let rank 0, with which the store may go, leave last; the others have read all notes then."""
        if self.rank != 0:
            self._store.set(f"{topic}/read/{self.rank}", "")
            if self._store.add(f"{topic}/readers", 1) == self.world_size - 1:
                self._store.set(f"{topic}/read", "")
            return
        begun_s = look_s = time.monotonic()
        while self.world_size > 1 and not self._store.check([f"{topic}/read"]):
            now_s = time.monotonic()
            if now_s > look_s + _LOOK_S:
                look_s = now_s
                reading = self._missing(f"{topic}/read", range(1, self.world_size))
                if len(self._liveness.ended(reading)) == len(reading) or now_s > begun_s + _FAREWELL_S:
                    return
            time.sleep(_FAREWELL_WAIT_S)

    def _look_for(self, topic: str, *, is_over: bool) -> None:
        """Raise if the ranks that are missing will not come, or the time is over."""
        missing = self._missing(topic, range(self.world_size))
        # Who has ended may have left its note since.
        gone = self._missing(topic, self._liveness.ended(missing))
        left = {rank: reason for rank in missing if (reason := self._reason_of_leaving(rank))}
        if gone:
            self._give_up(f"Rank {_listed(gone)} has ended before it came to `{topic}`; see its output.")
        if left:
            reason = next(iter(left.values()))
            self._give_up(f"Rank {_listed(left)} has stopped waiting for the others: {reason}")
        if is_over and missing:
            self._give_up(
                f"Rank {_listed(missing)} did not come to `{topic}` within {self.deadline_s:g} s. "
                "It may have failed; see its output."
            )

    def _missing(self, topic: str, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not self._store.check([f"{topic}/{rank}"])]

    def _reason_of_leaving(self, rank: int) -> str:
        key = f"gave-up/{rank}"
        return self._store.get(key).decode() if self._store.check([key]) else ""

    def _give_up(self, reason: str) -> NoReturn:
        self._has_given_up = True
        self._store.set(f"gave-up/{self.rank}", reason)
        raise CheckpointError(reason)


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
    store = store_of(group)
    timeout: timedelta = store.timeout  # type: ignore[attr-defined]  # torch's stubs lack it
    number = _num_agreements[group] = _num_agreements.get(group, 0) + 1
    prefix = f"accel_checkpoint_{number}"
    # On a connection of its own, since other calls on the group's may wait for minutes.
    apart: Store = store.clone()  # type: ignore[attr-defined]  # likewise
    return StoreAgreement(
        PrefixStore(prefix, store),
        rank=rank,
        world_size=world_size,
        deadline_s=timeout.total_seconds(),
        liveness=Liveness(PrefixStore(prefix, apart), rank=rank),
    )


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
