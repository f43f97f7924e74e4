"""A transport of our own: ranks that are threads of one process and swap values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from accel_ops import DistributedOperationException
from accel_ops.transport import Reduction, use_transport


class WireMismatch(AssertionError):
    """Two ranks made different calls of the transport, which on a real one would hang or mix up data."""


class LeftAlone(RuntimeError):
    """Another rank raised an error instead of making the call that this one waits in."""


class Meeting:
    """Where the threads swap values, round after round."""

    def __init__(self, num: int) -> None:
        self.num = num
        self.store = HashStore()
        self._changed = threading.Condition()
        self._rounds: list[dict[int, Any]] = []
        self._num_rounds_of = [0] * num
        self._is_over = False

    def swap(self, rank: int, value: Any) -> list[Any]:
        """Return the values that the threads gave in this round, once all have."""
        with self._changed:
            number = self._num_rounds_of[rank]
            self._num_rounds_of[rank] += 1
            if number == len(self._rounds):
                self._rounds.append({})
            values = self._rounds[number]
            values[rank] = value
            self._changed.notify_all()
            self._changed.wait_for(lambda: len(values) == self.num or self._is_over, timeout=10)
            if len(values) < self.num:
                raise LeftAlone(f"rank {rank} waited for others that did not come")
            return [values[other] for other in range(self.num)]

    def leave(self) -> None:
        """Let those that wait for this thread wait no longer."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()


class ThreadTransport:
    """Moves flat tensors between threads, and checks that all of them make the same call."""

    def __init__(self, rank: int, meeting: Meeting, *, checked: bool) -> None:
        self.rank = rank
        self.world_size = meeting.num
        self.lock = threading.RLock()
        self.calls: list[tuple[str, int]] = []
        self.store = meeting.store
        self._checked = checked
        self._meeting = meeting

    def device_for(self, device: torch.device) -> torch.device:
        return torch.device("cpu")

    def is_checked(self, device: torch.device) -> bool:
        return self._checked

    def all_gather(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.stack(self._swap("all_gather", flat)) for flat in tensors]

    def all_reduce(self, tensors: Sequence[torch.Tensor], reduction: Reduction) -> list[torch.Tensor]:
        combine = {
            "sum": lambda rows: rows.sum(0),
            "max": lambda rows: rows.amax(0),
            "min": lambda rows: rows.amin(0),
        }
        return [
            flat.copy_(combine[reduction](torch.stack(self._swap(f"all_reduce {reduction}", flat))))
            for flat in tensors
        ]

    def broadcast(self, tensors: Sequence[torch.Tensor], *, source: int) -> list[torch.Tensor]:
        received = [self._swap(f"broadcast from {source}", flat)[source] for flat in tensors]
        if self.rank == source:
            return list(tensors)
        return [flat.copy_(sent) for flat, sent in zip(tensors, received, strict=True)]

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

    def __init__(self, num: int, *, checked: bool = True) -> None:
        self._meeting = Meeting(num)
        self.transports = [ThreadTransport(rank, self._meeting, checked=checked) for rank in range(num)]

    def run(self, body: Callable[[int], Any]) -> list[Any]:
        """Return the results of ``body(rank)``, or raise the first error that no other one caused."""
        outcomes = self.outcomes(body)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in sorted(errors, key=lambda error: isinstance(error, LeftAlone)):
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


@pytest.fixture(params=[True, False], ids=["checked", "unchecked"])
def ranks(request: pytest.FixtureRequest) -> Callable[[int], Ranks]:
    """Return a function that gives that many ranks, once for each kind of transport."""
    return lambda num: Ranks(num, checked=request.param)
