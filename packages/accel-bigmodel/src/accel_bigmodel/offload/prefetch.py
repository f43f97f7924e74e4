"""Prefetch the weights of the next block in a background thread while the current one computes."""

from __future__ import annotations

import queue
import threading
from typing import Any

import torch

from accel_bigmodel.offload.residency import Residency
from accel_state.errors import AccelError

_IDLE_S = 2.0


class Prefetcher:
    """Prefetches the block that followed the current one last time.

    At most one block is prefetched, so that at most two are in memory. A wrong prediction is discarded; it costs time
    and changes no result.
    """

    def __init__(self) -> None:
        self._following: dict[int, Residency] = {}
        self._current = 0
        self._predicted: Residency | None = None
        self._lock = threading.Lock()

    def block_started(self, block: Residency) -> None:
        """Record that ``block`` runs now, and prefetch the one that followed it last time."""
        with self._lock:
            predicted, self._predicted = self._predicted, None
            if predicted is not None and predicted is not block:
                _discard(predicted)
            self._following[self._current] = block
            self._current = id(block)
            following = self._following.get(self._current)
            if following is None or following is block:
                return
            self._predicted = following
        _worker.submit(self, following)

    def expects(self, block: Residency) -> bool:
        """Whether ``block`` is still the predicted one."""
        return self._predicted is block

    def __deepcopy__(self, memo: dict[int, Any]) -> Prefetcher:
        copied: Prefetcher = memo.setdefault(id(self), Prefetcher())
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, ()


class _Worker:
    """One thread for the whole process, which ends when it is idle."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Prefetcher, Residency]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def submit(self, prefetcher: Prefetcher, block: Residency) -> None:
        with self._lock:
            self._jobs.put((prefetcher, block))
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="accel-prefetch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                prefetcher, block = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._jobs.empty():
                        self._thread = None
                        return
                continue
            _fetch(prefetcher, block)
            del prefetcher, block  # an idle worker keeps no model alive


def _fetch(prefetcher: Prefetcher, block: Residency) -> None:
    for weight in block.weights:
        if not prefetcher.expects(block):
            _discard(block)
            return
        try:
            with torch.no_grad():
                weight.prefetch()
        except (AccelError, OSError, RuntimeError, KeyError):
            return  # the forward pass loads it again, and raises the error


def _discard(block: Residency) -> None:
    for weight in block.weights:
        weight.discard_prefetched()


_worker = _Worker()
