"""A transport of our own: ranks that are threads of one process and meet at a barrier."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from accel_ops import DistributedOperationException
from accel_ops.frames import FrameTable
from accel_ops.transport import use_transport
from accel_ops.transport.bulletin import StoreBulletin


class WireMismatch(AssertionError):
    """Two ranks made different calls of the transport, which on a real one would hang or mix up data."""


class Meeting:
    """Where the threads swap values."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.store = HashStore()
        self._barrier = threading.Barrier(num)
        self._slots: list[Any] = [None] * num

    def swap(self, rank: int, value: Any) -> list[Any]:
        self._slots[rank] = value
        self._barrier.wait(10)
        values = list(self._slots)
        self._barrier.wait(10)
        return values

    def leave(self) -> None:
        self._barrier.abort()


class ThreadTransport:
    """Moves flat tensors between threads, and checks that all of them make the same call."""

    def __init__(self, rank: int, meeting: Meeting, *, framed: bool, packs_bytes: bool) -> None:
        self.rank = rank
        self.world_size = meeting.num
        self.frames = FrameTable(rank=rank, world_size=meeting.num)
        self.packs_bytes = packs_bytes
        self.control_device = torch.device("cpu")
        self.calls: list[tuple[str, int]] = []
        self._framed = framed
        self._meeting = meeting
        self._bulletin = StoreBulletin(meeting.store, rank=rank, world_size=meeting.num)

    def home(self, device: torch.device) -> torch.device:
        return torch.device("cpu")

    def is_framed(self, device: torch.device) -> bool:
        return self._framed

    def share(self, frames: FrameTable) -> None:
        frames.table.copy_(self.all_gather(frames.own))

    def all_gather(self, flat: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._swap("all_gather", flat))

    def all_reduce(self, flat: torch.Tensor) -> torch.Tensor:
        total = torch.stack(self._swap("all_reduce", flat)).sum(0)
        return flat.copy_(total)

    def broadcast(self, flat: torch.Tensor, *, source: int) -> torch.Tensor:
        received = self._swap(f"broadcast from {source}", flat)[source]
        return flat if self.rank == source else flat.copy_(received)

    @property
    def store(self) -> HashStore:
        return self._meeting.store

    def bulletin(self) -> StoreBulletin:
        return self._bulletin

    def _swap(self, kind: str, flat: torch.Tensor) -> list[torch.Tensor]:
        assert flat.ndim == 1
        assert flat.is_contiguous()
        self.calls.append((kind, flat.nbytes))
        sent = self._meeting.swap(self.rank, (kind, flat.dtype, flat.clone()))
        if len({(kind, dtype, tensor.numel()) for kind, dtype, tensor in sent}) > 1:
            raise WireMismatch([(kind, dtype, tensor.numel()) for kind, dtype, tensor in sent])
        return [tensor for _, _, tensor in sent]


class Ranks:
    """Runs a function on each of several ranks."""

    def __init__(self, num: int, *, framed: bool = True, packs_bytes: bool = True) -> None:
        self._meeting = Meeting(num)
        self.transports = [
            ThreadTransport(rank, self._meeting, framed=framed, packs_bytes=packs_bytes)
            for rank in range(num)
        ]

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """Return the results of ``body(rank)``, or raise the first error that no other one caused."""
        outcomes = self.outcomes(body)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return outcomes

    def outcomes(self, body: Callable[[int], Any]) -> list[Any]:
        """Return, for each rank, the result or the error."""
        with ThreadPoolExecutor(len(self.transports)) as pool:
            return list(pool.map(lambda transport: self._run_one(transport, body), self.transports))

    def _run_one(self, transport: ThreadTransport, body: Callable[[int], Any]) -> Any:
        with use_transport(transport):
            try:
                return body(transport.rank)
            except Exception as error:  # noqa: BLE001 - whatever it is, the test shall see it
                if isinstance(error, DistributedOperationException):
                    return error  # every rank has it
                self._meeting.leave()
                return error


@pytest.fixture
def make_ranks() -> type[Ranks]:
    """Return the class, to make ranks of any number and kind."""
    return Ranks


@pytest.fixture(
    params=[(True, True), (False, True), (False, False)],
    ids=["framed", "bytes", "one buffer per dtype"],
)
def ranks(request: pytest.FixtureRequest) -> Callable[[int], Ranks]:
    """Return a function that gives that many ranks, once for each kind of transport."""
    framed, packs_bytes = request.param
    return lambda num: Ranks(num, framed=framed, packs_bytes=packs_bytes)
