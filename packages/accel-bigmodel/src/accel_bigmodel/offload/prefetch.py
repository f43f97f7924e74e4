"""Prefetch the weights of the module that runs next."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from accel_bigmodel.offload.weight import OffloadedWeight
from accel_state.errors import AccelError


class Block(Protocol):
    """A module with offloaded weights that are loaded together."""

    @property
    def weights(self) -> Sequence[OffloadedWeight]:
        """The weights."""


@dataclass(eq=False)
class Prefetcher:
    """Prefetches the block that followed the current one last time.

    At most one block is prefetched, so that at most two are in memory. A wrong prediction is discarded; it costs time
    and changes no result.
    """

    _following: dict[int, Block] = field(default_factory=dict, init=False)
    _current: int = field(default=0, init=False)
    _predicted: Block | None = field(default=None, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def block_started(self, block: Block) -> None:
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
        if any(weight.is_copied for weight in following.weights):
            threading.Thread(
                target=self._fetch, args=(following,), name="accel-prefetch", daemon=True
            ).start()
        else:
            self._fetch(following)  # the system reads ahead on its own: nothing here waits for it

    def _fetch(self, block: Block) -> None:
        for weight in block.weights:
            try:
                with torch.no_grad():
                    weight.prefetch()
            except (AccelError, OSError, RuntimeError, KeyError):
                return  # the forward pass loads it again, and raises the error
            if self._predicted is not block:
                _discard(block)
                return

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, ()  # a copy of the model has other blocks


def _discard(block: Block) -> None:
    for weight in block.weights:
        weight.discard_prefetched()
