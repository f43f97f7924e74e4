"""What stages send each other: shapes with the first micro-batch of each shape, values with every one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from accel_backends.pipeline.stages import StagedModel
from accel_backends.plans.stages import MOST_KINDS
from accel_ops.nested.structures import is_container, recursively_apply
from accel_state.errors import ConfigError

Key = tuple[int, int]
"""A stage and a micro-batch."""
_DTYPES = (
    torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
_MOST_TENSORS, _MOST_DIMS = 7, MOST_KINDS
_NUM_SHAPES = 64
_ABSENT, _FAILED = -1, -2


class Peer:
    """A rank that tensors are sent to or received from, in the same order on both sides.

    Args:
        rank: Its rank in the world.
        group: The process group that carries nothing but these tensors, in one direction; None: that of the world.
    """

    def __init__(self, rank: int, group: dist.ProcessGroup | None = None) -> None:
        self._rank = rank
        self._group = group
        self._sent: deque[list[tuple[dist.Work | None, torch.Tensor]]] = deque()
        self._num_freed = 0

    def send(self, tensors: Sequence[torch.Tensor]) -> None:
        """Send tensors as one message, without waiting until they have arrived."""
        self.free()
        raw = [tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in tensors]
        self._sent.append([(dist.isend(one, self._rank, group=self._group), one) for one in raw])

    def free(self, num_arrived: int = 0) -> None:
        """Free messages that have arrived, be it that the backend knows, or that they are the first ``num_arrived``."""
        while self._sent and (self._num_freed < num_arrived or _has_arrived(self._sent[0])):
            for work, _ in self._sent.popleft():
                if work is not None:
                    work.wait()
            self._num_freed += 1

    def receive(self, like: Sequence[torch.Tensor], *, device: torch.device) -> list[torch.Tensor]:
        """Wait for tensors of the shapes and dtypes of ``like``, and return them."""
        received = [torch.empty(one.shape, dtype=one.dtype, device=device) for one in like]
        for tensor in received:
            dist.recv(tensor.reshape(-1).view(torch.uint8), self._rank, group=self._group)
        return received

    def finish(self) -> None:
        """Wait until everything has been sent."""
        self.free(self._num_freed + len(self._sent))


def _has_arrived(message: Sequence[tuple[dist.Work | None, torch.Tensor]]) -> bool:
    return all(work is None or work.is_completed() for work, _ in message)  # gloo never knows


class ReceiveQueue:
    """What a neighbour sends, taken in any order.

    Args:
        order: The keys of what it sends, in its order, each with the number of messages that it has received before.
        answered: Sends it these messages.
        receive: Receives what is sent for a key.
    """

    def __init__(
        self,
        order: Sequence[tuple[Key, int]],
        *,
        answered: Peer,
        receive: Callable[[Key], list[torch.Tensor]],
    ) -> None:
        self._coming = iter(order)
        self._answered = answered
        self._receive = receive
        self._kept: dict[Key, list[torch.Tensor]] = {}

    def take(self, key: Key) -> list[torch.Tensor]:
        """Wait for the tensors of a key, and return them."""
        while key not in self._kept:
            coming, num_received = next(self._coming)
            self._kept[coming] = self._receive(coming)
            self._answered.free(num_received)
        return self._kept.pop(key)


def num_lanes(num_ranks: int, stages_per_rank: int) -> int:
    """Return the number of process groups in each direction; with several stages the last rank sends to the first."""
    return 2 + num_ranks % 2 if stages_per_rank > 1 else 1


def lane(place: int, num_ranks: int) -> int:
    """Return which of two or three groups a rank sends in; neighbors send in others, as NCCL runs a group in order."""
    return 2 if num_ranks % 2 and place == num_ranks - 1 else place % 2


@dataclass(frozen=True, slots=True)
class Handover:
    """What one stage sends to the next.

    Attributes:
        like: A tensor without memory of each shape and dtype; None for an argument that is None.
        num_outputs: How many values blocks of each kind return in a tuple; 0: a tensor.
    """

    like: tuple[torch.Tensor | None, ...] = ()
    num_outputs: Sequence[int] = ()

    @classmethod
    def of(cls, values: Sequence[torch.Tensor | None], *, num_outputs: Sequence[int]) -> Handover:
        """Return the handover of ``values``.

        Raises:
            ConfigError: If there are more than a stage can describe to the next.
        """
        tensors = [one for one in values if one is not None]
        if len(values) > _MOST_TENSORS or any(
            one.ndim > _MOST_DIMS or one.dtype not in _DTYPES for one in tensors
        ):
            raise ConfigError(
                f"Blocks send {[(tuple(one.shape), one.dtype) for one in tensors]}, but a stage can send "
                f"{_MOST_TENSORS} tensors of {_MOST_DIMS} dimensions and of a dtype that torch computes in. Name fewer "
                "arguments in `stages` of the plan."
            )
        like = (
            None if one is None else torch.empty(one.shape, dtype=one.dtype, device="meta") for one in values
        )
        return cls(tuple(like), num_outputs)

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Tensors without memory, like those that are sent."""
        return [one for one in self.like if one is not None]

    def with_none(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Return ``tensors`` with None at its places among the arguments."""
        remaining = iter(tensors)
        return [None if one is None else next(remaining) for one in self.like]

    def header(self) -> torch.Tensor:
        """Return numbers that describe it to the next stage."""
        rows = [[len(self.like), *self.num_outputs]]
        for one in self.like:
            rows.append([_ABSENT] if one is None else [_DTYPES.index(one.dtype), one.ndim, *one.shape])
        return _table(rows)


def receive_handover(sender: Peer, device: torch.device) -> Handover | None:
    """Receive a handover; None if the sender has failed, and sends no values."""
    (table,) = sender.receive([_table([])], device=device)
    (number, *num_outputs), *rows = table.tolist()
    if number == _FAILED:
        return None
    like = (
        None if code == _ABSENT else torch.empty(dims[:ndim], dtype=_DTYPES[code], device="meta")
        for code, ndim, *dims in rows[:number]
    )
    return Handover(tuple(like), tuple(num_outputs))


def _table(rows: Sequence[Sequence[int]]) -> torch.Tensor:
    table = torch.zeros(_MOST_TENSORS + 1, MOST_KINDS + 2, dtype=torch.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = torch.tensor(row)
    return table


class KnownHandovers(dict[tuple[int, str], Handover]):
    """The handovers that a rank has sent or received, by stage and shape of the micro-batch."""

    def add(self, stage: int, shape: str, handover: Handover) -> None:
        """Store a handover. Both sides do, in the same order, and so forget the same ones."""
        self[stage, shape] = handover
        of_stage = [key for key in self if key[0] == stage]
        if len(of_stage) > _NUM_SHAPES:
            del self[of_stage[0]]


def shape_of(part: Any) -> str:
    """Describe what may choose the path of a micro-batch through the model, and so the shapes that are sent."""
    return repr(recursively_apply(_described, part, test_type=lambda value: not is_container(value)))


def _described(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype
    return value if value is None or isinstance(value, bool) else type(value)


class ForwardMessages:
    """The values that a rank sends and receives in one batch, in forward passes.

    Args:
        staged: The model.
        known: Handovers of earlier batches.
        shapes: That of each micro-batch, from `shape_of`.
        device: Where values are received.
    """

    def __init__(
        self, staged: StagedModel, known: KnownHandovers, shapes: Sequence[str], device: torch.device
    ) -> None:
        self._staged = staged
        self._known = known
        self._shapes = shapes
        self._device = device
        self._of_batch: dict[tuple[int, int], Handover] = {}
        self.has_lost = False
        """Whether the previous stage has failed before it knew what it would have to send."""

    def handover(self, stage: int, number: int) -> Handover:
        """Return what a stage has sent of a micro-batch in this batch; nothing if it has failed."""
        return self._of_batch[stage, number]

    def check(self, stage: int, number: int, values: Sequence[torch.Tensor | None]) -> None:
        """Check that values have the shapes of those of earlier micro-batches like this one.

        Raises:
            ConfigError: If they have not.
        """
        found = Handover.of(values, num_outputs=())
        known = self._known.get((stage, self._shapes[number]))
        if known is not None and _kinds(known) != _kinds(found):
            raise ConfigError(
                "The forward of the model takes another path with these inputs than with earlier ones of the same "
                "shapes, so the tensors that its stages send differ. Do not let values of inputs decide shapes."
            )

    def send(
        self, following: Peer, stage: int, number: int, values: Sequence[torch.Tensor | None] | None
    ) -> None:
        """Send the values that ``stage`` sends, after `check`; None: zeros, since this rank has failed."""
        known = self._known.get((stage, self._shapes[number]))
        if values is None:
            handover = self._of_batch[stage, number] = known or Handover()
            zeros = [torch.zeros(one.shape, dtype=one.dtype, device=self._device) for one in handover.tensors]
            following.send(zeros if known else [_table([[_FAILED]]).to(self._device)])
            return
        tensors = [one for one in values if one is not None]
        if known is None:
            known = Handover.of(values, num_outputs=self._staged.run_state.num_outputs)
            self._known.add(stage, self._shapes[number], known)
            tensors.insert(0, known.header().to(self._device))
        self._of_batch[stage, number] = known
        following.send(tensors)

    def receive(self, previous: Peer, stage: int, number: int) -> list[torch.Tensor]:
        """Receive the tensors that ``stage`` sends."""
        handover = self._known.get((stage, self._shapes[number]))
        if handover is None:
            handover = receive_handover(previous, self._device)
            if handover is None:
                self.has_lost = True
                self._of_batch[stage, number] = Handover()
                return []
            self._known.add(stage, self._shapes[number], handover)
        self._staged.run_state.num_outputs = handover.num_outputs
        self._of_batch[stage, number] = handover
        return previous.receive(handover.tensors, device=self._device)


def _kinds(handover: Handover) -> list[Any]:
    return [None if one is None else (one.shape, one.dtype) for one in handover.like]
