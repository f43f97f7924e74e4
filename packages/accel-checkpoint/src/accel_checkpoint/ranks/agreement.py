"""The ranks tell each other how a step went, beside the collectives of training and from any thread."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Protocol
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel_checkpoint.ranks.heartbeat import Heartbeat
from accel_state.errors import CheckpointError
from accel_state.group_store import store_of

_FIRST_WAIT_S = 0.001
_LONGEST_WAIT_S = 0.05
_CHECKS_PER_S = 4000
"""What all waiting ranks together ask one store at most."""
_LOOK_S = 0.5
"""How often to look whether those that are missing can still come."""
_GRACE_S = 10.0
"""How much longer than rank 0 the others wait, so that it can name those that did not come."""
_FAREWELL_S = 10.0
"""How long rank 0 waits at most until the others have read the verdict."""
_AGREED = "agreed: "
"""Begins a verdict, in contrast to the reason why there is none."""
_num_agreements: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()
"""How many were made on a group, so that the notes of one are never taken for those of another."""


Merge = Callable[[Sequence[str]], str]
"""Makes one verdict out of the reports of all ranks, in rank order."""


class Presence(Protocol):
    """Knows which ranks have ended."""

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that will not come any more; never blocks for long."""
        ...


class Agreement(Protocol):
    """Rounds in which every rank gives a report, and all get the verdict that rank 0 makes of the reports.

    A rank makes a fixed number of requests in a round, however many ranks there are; only rank 0 reads all reports.
    """

    rank: int
    world_size: int

    def agree(self, topic: str, report: str, merge: Merge) -> str:
        """Return the verdict on ``topic``; blocks until every rank has reported.

        Args:
            topic: The same on every rank, and never used twice.
            report: What this rank has to say.
            merge: Called on rank 0.

        Raises:
            CheckpointError: If a rank has not reported before the deadline, or has ended.
        """
        ...


def first(reports: Sequence[str]) -> str:
    """Return the report of rank 0, as the verdict."""
    return reports[0]


class Alone:
    """One process agrees with itself."""

    rank = 0
    world_size = 1

    def agree(self, topic: str, report: str, merge: Merge) -> str:
        """Return the verdict on the one report."""
        return merge([report])


class StoreAgreement:
    """Reports and verdicts in the store of the process group.

    Args:
        store: The store.
        rank: This process.
        world_size: How many there are.
        deadline_s: How long to wait for the others; the group's own timeout is a good choice.
        presence: Tells which ranks have ended, for which nobody waits.
    """

    def __init__(
        self, store: Store, *, rank: int, world_size: int, deadline_s: float, presence: Presence
    ) -> None:
        self._store = store
        self._presence = presence
        # So that the requests of all ranks together stay within what one store serves with ease.
        self._longest_wait_s = max(_LONGEST_WAIT_S, world_size / _CHECKS_PER_S)
        self._look_s = max(_LOOK_S, 10 * self._longest_wait_s)
        self.rank = rank
        self.world_size = world_size
        self.deadline_s = deadline_s

    def agree(self, topic: str, report: str, merge: Merge) -> str:
        """Return the verdict."""
        with self._naming_a_lost_store(topic):
            if self.rank == 0:
                return self._decide(topic, report, merge)
            self._store.set(f"{topic}/report/{self.rank}", report)
            if self._store.add(f"{topic}/count", 1) == self.world_size - 1:
                self._store.set(f"{topic}/complete", "")
            verdict = self._verdict(topic)
            self._store.delete_key(f"{topic}/report/{self.rank}")
            if self._store.add(f"{topic}/readers", 1) == self.world_size - 1:
                self._store.set(f"{topic}/read", "")
            return verdict

    def _verdict(self, topic: str) -> str:
        """Return what rank 0 has decided."""
        # Rank 0, which names those that are missing, is given the time to do so.
        end_s = time.monotonic() + self.deadline_s + _GRACE_S
        for now_s in self._until(f"{topic}/verdict"):
            if self._presence.ended([0]) and not self._store.check([f"{topic}/verdict"]):
                raise CheckpointError(f"Rank 0 has ended before it came to `{topic}`; see its output.")
            if now_s > end_s:
                raise CheckpointError(
                    f"Rank 0 did not come to `{topic}` within {self.deadline_s:g} s. It may have failed; "
                    "see its output."
                )
        answer = self._store.get(f"{topic}/verdict").decode()
        if not answer.startswith(_AGREED):
            raise CheckpointError(answer)
        return answer.removeprefix(_AGREED)

    def _decide(self, topic: str, report: str, merge: Merge) -> str:
        """Wait for all reports, and leave the verdict; whatever happens, the others need not wait any longer."""
        try:
            verdict = merge([report, *self._reports(topic)])
        except BaseException as error:
            own = f"Rank 0 has stopped waiting for the others: {type(error).__name__}."
            with contextlib.suppress(dist.DistError):
                self._store.set(f"{topic}/verdict", str(error) if isinstance(error, CheckpointError) else own)
            raise
        self._store.set(f"{topic}/verdict", f"{_AGREED}{verdict}")
        self._wait_for_readers(topic)
        return verdict

    def _reports(self, topic: str) -> list[str]:
        """Return the reports of the other ranks once all are there."""
        if self.world_size == 1:
            return []
        end_s = time.monotonic() + self.deadline_s
        for now_s in self._until(f"{topic}/complete"):
            missing = self._missing(f"{topic}/report", range(1, self.world_size))
            # One that has ended may have left its report since.
            gone = self._missing(f"{topic}/report", self._presence.ended(missing))
            if gone:
                raise CheckpointError(
                    f"Rank {_listed(gone)} has ended before it came to `{topic}`; see its output."
                )
            if missing and now_s > end_s:
                raise CheckpointError(
                    f"Rank {_listed(missing)} did not come to `{topic}` within {self.deadline_s:g} s. "
                    "It may have failed; see its output."
                )
        return self._values([f"{topic}/report/{rank}" for rank in range(1, self.world_size)])

    def _wait_for_readers(self, topic: str) -> None:
        """Let rank 0, with which the store may go, leave last, and remove what is not needed any more."""
        if self.world_size > 1:
            end_s = time.monotonic() + _FAREWELL_S
            for now_s in self._until(f"{topic}/read"):
                others = range(1, self.world_size)
                if now_s > end_s or len(self._presence.ended(others)) == len(others):
                    return
        with contextlib.suppress(dist.DistError):
            for name in ("count", "complete", "verdict", "readers", "read"):
                self._store.delete_key(f"{topic}/{name}")

    def _until(self, key: str) -> Iterator[float]:
        """Return when ``key`` is there, and yield the time now and then until that, to look for what went wrong."""
        # Asked again and again rather than waited for: a waiting call could not be interrupted by Ctrl-C.
        wait_s, look_s = _FIRST_WAIT_S, time.monotonic() + min(self._look_s, self.deadline_s)
        while not self._store.check([key]):
            now_s = time.monotonic()
            if now_s > look_s:
                look_s = now_s + self._look_s
                yield now_s
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, self._longest_wait_s)

    def _values(self, keys: list[str]) -> list[str]:
        """Return the values of keys that are there, in one request where the store can do that."""
        if self._store.has_extended_api():  # type: ignore[attr-defined]  # torch's stubs lack it
            return [value.decode() for value in self._store.multi_get(keys)]
        return [self._store.get(key).decode() for key in keys]

    def _missing(self, prefix: str, ranks: Iterable[int]) -> list[int]:
        return [rank for rank in ranks if not self._store.check([f"{prefix}/{rank}"])]

    @contextlib.contextmanager
    def _naming_a_lost_store(self, topic: str) -> Iterator[None]:
        try:
            yield
        except dist.DistError as error:
            raise CheckpointError(
                f"The ranks cannot agree on `{topic}`: the store of the process group does not answer "
                f"({str(error).splitlines()[0]}). Rank 0, or the launcher, which keeps it, has ended."
            ) from error


class CollectiveAgreement:
    """Reports by an object collective, for devices whose processes have no store in common.

    Args:
        gather: Returns the objects of all ranks in a list.
        rank: This process.
        world_size: How many there are.
    """

    def __init__(self, gather: Callable[[list[str]], list[str]], *, rank: int, world_size: int) -> None:
        self._gather = gather
        self.rank = rank
        self.world_size = world_size

    def agree(self, topic: str, report: str, merge: Merge) -> str:
        """Return the verdict, which every rank makes alike."""
        return merge(self._gather([report]))


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
        presence=Heartbeat(PrefixStore(prefix, apart), rank=rank),
    )


def _listed(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))
