"""Prefetch the weights of the modules that run next."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from accel_bigmodel import transfers
from accel_bigmodel.offload.weight import OffloadedWeight
from accel_state.errors import AccelError

_START = 0


class Block(Protocol):
    """A module with offloaded weights that are loaded together."""

    @property
    def weights(self) -> Sequence[OffloadedWeight]:
        """The weights."""

    @property
    def num_bytes(self) -> int:
        """Their size."""


class _Pass(threading.local):
    """The forward passes of one thread.

    Attributes:
        following: The successor of each block in the last pass, by identity.
        ahead: Blocks that are prefetched, in their expected order.
        loaded: The sizes of the blocks that run, by identity.
        launched: Sizes of blocks whose kernels may not have finished, each with the event after these.
    """

    def __init__(self) -> None:
        self.is_active = False
        self.current = _START
        self.following: dict[int, weakref.ref[Block]] = {}
        self.ahead: deque[Block] = deque()
        self.loaded: dict[int, int] = {}
        self.launched: deque[tuple[int, Any]] = deque()

    @property
    def num_bytes(self) -> int:
        """The size of all blocks that occupy device memory."""
        ahead = sum(block.num_bytes for block in self.ahead)
        return ahead + sum(self.loaded.values()) + sum(size for size, _ in self.launched)


@dataclass(eq=False)
class Prefetcher:
    """Prefetches blocks in the order of the last forward pass of the thread, within a forward pass only.

    A block is copied as soon as it, the running blocks, and the blocks with unfinished kernels take no more than twice
    the largest block. The host waits for that, so that memory stays bounded however far the kernels are behind. A
    wrong prediction is discarded; it costs time and changes no result.
    """

    _pass: _Pass = field(default_factory=_Pass, init=False)
    _largest: int = field(default=0, init=False)
    _pinned: transfers.PinnedMemory | None = field(default=None, init=False)
    _num_stored: int = field(default=-1, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def forward_started(self, weights: Iterable[OffloadedWeight]) -> None:
        """Start a forward pass of the model with these weights: pin new ones, and prefetch the first block."""
        with self._lock:
            if self._num_stored != OffloadedWeight.num_stored:
                self._num_stored, self._pinned = OffloadedWeight.num_stored, None
                self._pinned = transfers.PinnedMemory(
                    [stored for weight in weights if (stored := weight.memory_to_pin()) is not None]
                )
        self._pass.is_active, self._pass.current = True, _START
        self._prefetch()

    def forward_ended(self) -> None:
        """End the forward pass, and discard prefetched blocks: stored values may change from now on."""
        now = self._pass
        now.is_active = False
        self._discard(len(now.ahead))
        now.following.pop(now.current, None)
        now.loaded.clear()

    def block_started(self, block: Block) -> None:
        """Record that ``block`` runs now. Call it before its weights are loaded."""
        now = self._pass
        self._discard(now.ahead.index(block) if block in now.ahead else len(now.ahead))
        if now.ahead:
            now.ahead.popleft()
        num_bytes = now.loaded[id(block)] = block.num_bytes
        self._largest = max(self._largest, num_bytes)
        now.following[now.current], now.current = weakref.ref(block), id(block)

    def block_finished(self, block: Block) -> None:
        """Record that the kernels of ``block`` were launched, and prefetch the blocks that follow."""
        now = self._pass
        num_bytes = now.loaded.pop(id(block), 0)
        streams = transfers.streams_of(block.weights[0].device)
        if streams is not None and now.is_active:
            now.launched.append((num_bytes, streams.current().record_event()))
        self._prefetch()

    def _prefetch(self) -> None:
        now = self._pass
        while now.is_active:
            reference = now.following.get(id(now.ahead[-1]) if now.ahead else now.current)
            block = None if reference is None else reference()
            if block is None or block in now.ahead or id(block) in now.loaded:
                return
            if not self._make_room(block.num_bytes):
                return
            now.ahead.append(block)
            try:
                with torch.inference_mode(False), torch.no_grad():  # else these were inference tensors
                    for weight in block.weights:
                        weight.prefetch()
            except (AccelError, OSError, RuntimeError, KeyError):
                self._discard(len(now.ahead))
                return  # a prediction must not fail the pass; if the block is needed, its load raises the error

    def _make_room(self, num_bytes: int) -> bool:
        """Wait until a block may be copied; if other blocks are prefetched already, only check whether it may."""
        now = self._pass
        while now.launched and now.num_bytes + num_bytes > 2 * self._largest:
            event = now.launched[0][1]
            if now.ahead and not event.query():
                return False
            event.synchronize()  # the host waits: the memory of that block is needed
            now.launched.popleft()
        return now.num_bytes + num_bytes <= 2 * self._largest

    def _discard(self, num_blocks: int) -> None:
        for _ in range(num_blocks):
            for weight in self._pass.ahead.popleft().weights:
                weight.discard_prefetched()

    def __reduce__(self) -> tuple[Any, ...]:
        return Prefetcher, ()  # a copy of the model has other blocks
