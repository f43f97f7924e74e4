"""Which ranks have ended, known long before the timeout of the process group."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from accel_checkpoint.process_identity import has_ended, this_process

BEAT_S = 2.0
"""How often a rank gives a sign of life."""
SILENCE_S = 60.0
"""A rank on another machine that has given none for so long has ended, or is as good as that."""


class Heartbeat:
    """This rank's signs of life in the store, and what is known of the others'.

    On one machine the system tells at once whether a process is there. Of a rank elsewhere, the signs stay away.
    A rank that has given none yet is late, not gone: nobody knows when it will come. The signs end with this
    object, or with the process.

    Args:
        store: Where the ranks leave word, on a connection that no other call keeps waiting.
        rank: This process.
        beat_s: How often to give a sign.
        silence_s: After how long without one a rank counts as gone.
    """

    def __init__(
        self, store: Store, *, rank: int, beat_s: float = BEAT_S, silence_s: float = SILENCE_S
    ) -> None:
        self._store = store
        self._silence_s = silence_s
        self._heard: dict[int, tuple[str, float]] = {}
        store.set(f"process/{rank}", this_process())
        store.set(f"sign/{rank}", "0")
        stop = threading.Event()
        signs = threading.Thread(
            target=_give_signs, args=(store, rank, beat_s, stop), name="accel-heartbeat", daemon=True
        )
        signs.start()
        # Also at the end of the program: a thread in the store while Python goes down would abort it.
        weakref.finalize(self, _end, stop, signs)

    def ended(self, ranks: Iterable[int]) -> list[int]:
        """Return those of ``ranks`` that were there and are not any more; never blocks for long."""
        begun = [rank for rank in ranks if self._store.check([f"sign/{rank}"])]
        return [rank for rank in begun if self._is_gone_here(rank) or self._is_silent(rank)]

    def _is_gone_here(self, rank: int) -> bool:
        return has_ended(self._store.get(f"process/{rank}").decode())

    def _is_silent(self, rank: int) -> bool:
        sign, now_s = self._store.get(f"sign/{rank}").decode(), time.monotonic()
        last, since_s = self._heard.get(rank, ("", now_s))
        if sign != last:
            self._heard[rank] = sign, now_s
            return False
        return now_s - since_s > self._silence_s


def _give_signs(store: Store, rank: int, beat_s: float, stop: threading.Event) -> None:
    number = 0
    while not stop.wait(beat_s):
        number += 1
        try:
            store.set(f"sign/{rank}", str(number))
        except dist.DistError:
            return  # who keeps the store is gone; whoever asks it next will know


def _end(stop: threading.Event, signs: threading.Thread) -> None:
    stop.set()
    if signs is not threading.current_thread():
        signs.join(timeout=BEAT_S)
