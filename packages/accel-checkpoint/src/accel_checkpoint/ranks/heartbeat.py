"""Heartbeats over the store of the process group: detect which ranks have ended, and which are still working."""

from __future__ import annotations

import socket
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from accel_checkpoint.files import Digest
from accel_checkpoint.process_identity import has_ended_by_stamp, stamp


class Connection:
    """Has the methods of a store; a request whose connection broke is repeated over a new one, unless it is `add`."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_broken = False
        # The store answers no `set`, so one may be lost until a later request is answered.
        self._unanswered: dict[str, str] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return partial(self._request, name)

    def values(self, keys: Sequence[str]) -> list[str]:
        """Return the values of existing keys, in one request if the store supports it."""
        if self._store.has_extended_api():  # type: ignore[attr-defined]  # torch's stubs lack it
            return [value.decode() for value in self._request("multi_get", list(keys))]
        return [self._request("get", key).decode() for key in keys]

    def _request(self, name: str, *args: Any) -> Any:
        try:
            answer = getattr(self._open(), name)(*args)
        except dist.DistNetworkError:
            was_broken, self._is_broken = self._is_broken, True
            if was_broken or name == "add":  # it may have been counted
                raise
            answer = getattr(self._open(), name)(*args)
        self._unanswered = {**self._unanswered, args[0]: args[1]} if name == "set" else {}
        return answer

    def _open(self) -> Store:
        if self._is_broken:
            inner = self._store
            while isinstance(inner, PrefixStore):
                inner = inner.underlying_store
            try:
                # Without a listener, `clone` would retry for minutes and print stack traces.
                socket.create_connection((inner.host, inner.port), timeout=10).close()  # type: ignore[attr-defined]
            except OSError as error:
                raise dist.DistNetworkError(f"a new connection failed: {error}") from error
            self._store, self._is_broken = self._store.clone(), False  # type: ignore[attr-defined]  # as above
            for key, value in self._unanswered.items():
                self._store.set(key, value)
        return self._store


BEAT_S = 2.0
"""Interval between the heartbeats of a rank."""
SILENCE_S = 60.0
"""A rank on another machine counts as ended after this long without a heartbeat."""


class Heartbeat:
    """Sends this rank's heartbeats to the store, and checks the heartbeats of other ranks.

    A process on the same machine is looked up in `/proc`, which shows at once that it has ended. A rank on another
    machine counts as ended when its heartbeats stop. A rank that has not sent any yet counts as late, not as ended.
    Rank 0 checks the other ranks, and they check rank 0. A heartbeat has the number of bytes of checkpoints that the
    rank has written and read, rank 0's the sum of all ranks; ranks on rank 0's machine send one only if it changed.
    The heartbeats stop with this object, or with the process.

    Args:
        store: A store that the ranks share, on a connection that no other call blocks.
        rank: This process.
        beat_s: Interval between heartbeats.
        silence_s: A rank without a heartbeat for this long counts as ended.
    """

    def __init__(
        self, store: Store, *, rank: int, beat_s: float = BEAT_S, silence_s: float = SILENCE_S
    ) -> None:
        self._store = Connection(store)
        self._silence_s = silence_s
        self._processes: dict[int, str] = {}
        self._last_beats: dict[int, tuple[str, float]] = {}
        self._stamp = stamp()
        self.num_bytes = 0
        """Bytes that the ranks of the last call of `ended` had written and read by then."""
        self._store.set(f"process/{rank}", self._stamp)
        self._store.set(f"heartbeat/{rank}", "0 0")
        # Locked while the thread should run. An `Event` would deadlock: garbage collection inside its `wait` may call
        # `_end`, which needs the same lock.
        running = threading.Lock()
        running.acquire()
        arguments = weakref.ref(self), self._store, rank, self._stamp, beat_s, running
        thread = threading.Thread(
            target=_send_heartbeats, args=arguments, name="accel-heartbeat", daemon=True
        )
        thread.start()
        # Also at exit: a thread inside a store call would abort the interpreter's shutdown.
        weakref.finalize(self, _end, running, thread)

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return the ranks among ``ranks`` that were alive and have ended; does not block for long.

        Once these ranks have started, this takes one request for any number of them.
        """
        ranks = list(ranks)
        unknown = [rank for rank in ranks if rank not in self._processes]
        if unknown:
            if not self._store.check([f"heartbeat/{rank}" for rank in unknown]):
                unknown = [rank for rank in unknown if self._store.check([f"heartbeat/{rank}"])]
            processes = self._store.values([f"process/{rank}" for rank in unknown])
            self._processes.update(zip(unknown, processes, strict=True))
        started = [rank for rank in ranks if rank in self._processes]
        beats = self._store.values([f"heartbeat/{rank}" for rank in started])
        self.num_bytes = sum(int(beat.split()[1]) for beat in beats)
        return [rank for rank, beat in zip(started, beats, strict=True) if self._has_ended(rank, beat)]

    def _has_ended(self, rank: int, beat: str) -> bool:
        has_ended = has_ended_by_stamp(self._processes[rank], own=self._stamp)
        if has_ended is not None:
            return has_ended
        now_s = time.monotonic()
        last, since_s = self._last_beats.get(rank, ("", now_s))
        if beat != last:
            self._last_beats[rank] = beat, now_s
            return False
        return now_s - since_s > self._silence_s


def _send_heartbeats(
    heartbeat: weakref.ref[Heartbeat],
    store: Connection,
    rank: int,
    own_stamp: str,
    beat_s: float,
    running: threading.Lock,
) -> None:
    number, host, sent = 0, "", 0
    while not running.acquire(timeout=beat_s):
        number += 1
        num_bytes = Digest.num_bytes_of_all + (getattr(heartbeat(), "num_bytes", 0) if rank == 0 else 0)
        try:
            host = host or (store.values(["process/0"])[0] if store.check(["process/0"]) else "")
            # Rank 0 looks up a process of its machine; torch prints a stack trace once its store has ended.
            is_far = not host or has_ended_by_stamp(host, own=own_stamp) is None
            if rank == 0 or num_bytes != sent or is_far:
                store.set(f"heartbeat/{rank}", f"{number} {num_bytes}")
                sent = num_bytes
        except dist.DistError as error:
            if isinstance(error.__cause__, ConnectionRefusedError):
                return  # the store's host has ended; the next call to the store reports it


def _end(running: threading.Lock, thread: threading.Thread) -> None:
    running.release()
    if thread is not threading.current_thread():
        thread.join(timeout=BEAT_S)
