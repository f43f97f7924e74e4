"""A board beside the collectives: each rank pins up what it does next, and reads what the others pinned."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

from torch._C._distributed_c10d import PrefixStore, Store

from accel_state.errors import DistributedOperationException


class Bulletin(Protocol):
    """Rounds in which every rank pins up one note and reads those of all."""

    def post(self, note: str) -> None:
        """Open the next round with this rank's note."""
        ...

    def collect(self, *, deadline_s: float) -> list[str | None]:
        """Return the notes of this round in rank order, ``None`` for the ranks that did not come in time.

        All ranks that come get the same answer as to whether the round was complete, however late they come.
        """
        ...

    def previous(self, rank: int) -> str | None:
        """Return the note of a rank in the round before, or ``None``."""
        ...


class StoreBulletin:
    """A board in a store of torch.distributed (that of the process group)."""

    def __init__(self, store: Store, *, rank: int, world_size: int) -> None:
        self._store = PrefixStore("accel_bulletin", store)
        self._rank = rank
        self._world_size = world_size
        self._round = 0

    def post(self, note: str) -> None:
        self._round += 1
        self._store.set(self._key(self._round, self._rank), note)

    def collect(self, *, deadline_s: float) -> list[str | None]:
        keys = [self._key(self._round, rank) for rank in range(self._world_size)]
        is_complete = self._wait(keys, deadline_s)
        verdict = self._store.compare_set(
            f"{self._round}/verdict", "", "complete" if is_complete else "given up"
        )
        if verdict == b"complete":
            # Whoever says so has seen all notes, so all are there even if this rank's own patience had ended.
            notes: list[str | None] = [note.decode() for note in self._store.multi_get(keys)]
            self._clean_up()
            return notes
        present = [self._store.check([key]) for key in keys]
        if all(present):
            # The others gave this round up before this rank came.
            raise DistributedOperationException(
                f"Process {self._rank} came to this operation after the other processes had given it up. "
                "They "
                f"waited for {deadline_s:g} seconds; see their errors."
            )
        return [
            self._store.get(key).decode() if here else None for key, here in zip(keys, present, strict=True)
        ]

    def previous(self, rank: int) -> str | None:
        key = self._key(self._round - 1, rank)
        return self._store.get(key).decode() if self._store.check([key]) else None

    def _wait(self, keys: Sequence[str], deadline_s: float) -> bool:
        """Return whether all keys came in time.

        Not with the store's own `wait`, whose time limit and error differ between the kinds of store.
        """
        end = time.monotonic() + deadline_s
        pause_s = 0.0002
        while not self._store.check(list(keys)):
            if time.monotonic() > end:
                return False
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.05)
        return True

    def _clean_up(self) -> None:
        """Take down what nobody reads any more: all ranks have left the round before the previous one."""
        if self._round > 2:
            self._store.delete_key(self._key(self._round - 2, self._rank))
            if self._rank == 0:
                self._store.delete_key(f"{self._round - 2}/verdict")

    def _key(self, number: int, rank: int) -> str:
        return f"{number}/{rank}"
