"""A dispatched epoch: the main process reads, scatters and sends steps, which the other ranks receive.

Two steps are sent at once: as a description, which all ranks wait for, and the bytes of all tensors, in a broadcast
that overlaps with the use of the step before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch

from accel_data.dispatch.scatter import ScatterPlan
from accel_data.step import NO_BATCH, GlobalStep, Position, ReadStates, StepInfo
from accel_ops.agreement import Call
from accel_ops.nested.structures import recursively_apply
from accel_ops.objects import broadcast_from
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError, StateError

T = TypeVar("T")

_STEPS_AT_ONCE = 2
"""With two, no step is read earlier than if each were sent separately: one step ahead of its use, one ahead of the
broadcast."""
_ALIGNMENT = 16  # the item size of complex128, the largest
_CPU = torch.device("cpu")


class Slot(NamedTuple):  # pickled faster than a dataclass
    """A tensor in a structure: dtype, shape, and the location of its bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class Outline(NamedTuple):
    """The description of a rank's piece: the structure with a `Slot` for each tensor, and the range of its bytes."""

    skeleton: Any
    start: int
    stop: int


def read_steps(
    batches: Iterator[tuple[Any, int | None]], plan: ScatterPlan, read_states: Callable[[], ReadStates]
) -> Iterator[tuple[GlobalStep, ReadStates]]:
    """Yield the steps of an epoch and the states after each, reading no step before it is requested.

    Args:
        batches: All batches, each with its number of samples, None if unknown.
        plan: Scatters them.
        read_states: Returns the states of data set and loader.

    Raises:
        ConfigError: If a rank has no batch in a step that is not the last.
    """
    first: list[Any] = []
    num_with_batch = plan.num_ranks
    while group := list(islice(batches, plan.batches_per_step)):
        if plan.drop_last and len(group) < plan.batches_per_step:
            return
        if num_with_batch < plan.num_ranks:
            raise ConfigError(
                f"A batch that is not the last has rows for {num_with_batch} of {plan.num_ranks} processes: the other "
                "processes would leave the loop. Pass `even_batches=True`, or yield short batches only at the end."
            )
        plain, sizes = [batch for batch, _ in group], [size for _, size in group]
        if plan.even and not first:
            # Copies: a rank may change its batch of the first step in place.
            first = [recursively_apply(torch.clone, batch) for batch in plain]
        step = plan.scatter(plain, first, sizes)
        num_with_batch = step.num_with_batch
        yield step, read_states()


class Announced(NamedTuple):
    """A step that all ranks know of, while its tensors are on their way.

    Args:
        step: The step; an error instead of it; None at the end.
        states: States of data set and loader after it, on the rank that reads.
        receive: Waits for the tensors, and returns the piece of this rank.
    """

    step: GlobalStep | Exception | None
    states: ReadStates | None = None
    receive: Callable[[], Any] = lambda: NO_BATCH


class DispatchedSteps:
    """The steps of one pass as this rank gets them. Iterate it once.

    The next step is announced before each is yielded: its tensors are sent while this one is used, and the ranks with
    a batch in it are known. An error is raised when its step is due; until then all ranks continue.

    Args:
        announced: From `send_steps` or `receive_steps`.
        start: The first position of the pass.
        rank: This rank among the data ranks.
        rows_per_batch: Rows of a full batch of the given loader.

    Attributes:
        num_missed: At the end: steps of other ranks without a batch for this one.

    Raises:
        Exception: Any error while reading, on the main process; `StateError` on all other ranks. If a piece cannot be
            pickled, the error of pickle; on all other ranks `DistributedOperationException`.
    """

    def __init__(
        self, announced: Iterator[Announced], start: Position, *, rank: int, rows_per_batch: int
    ) -> None:
        self.num_missed = 0
        self._announced = announced
        self._start = start
        self._rank = rank
        self._rows_per_batch = rows_per_batch

    def __iter__(self) -> Iterator[tuple[Any, StepInfo]]:
        # Not kept, so that the iterator, and with it the workers of the loader, end with the loop.
        announced, self._announced = self._announced, iter(())
        end, current = self._start, next(announced)
        while isinstance(current.step, GlobalStep):
            following, step = next(announced), current.step
            if isinstance(following.step, Exception) and step.num_with_batch < len(step.pieces):
                raise following.step  # a rank without a batch would leave the loop and miss it
            piece = current.receive()
            if piece is NO_BATCH:
                self.num_missed = 1
                return
            end = Position(
                end.samples + step.num_batches * self._rows_per_batch, end.batches + step.num_batches
            )
            ahead = step if isinstance(following.step, Exception) else following.step
            step = step._replace(num_following=0 if ahead is None else ahead.num_with_batch)
            # The data set may learn only now that the epoch has ended: after the last step, read its state at the save.
            states = current.states if step.num_following else None
            yield piece, step.seen_by(self._rank, end=end, states=states)
            current = following
        if current.step is not None:
            raise current.step


def send_steps(
    steps: Iterator[tuple[GlobalStep, ReadStates]], rank: int, *, is_alone: bool = False
) -> Iterator[Announced]:
    """Announce the steps to all ranks and start to send them, on the main process, whose data rank is ``rank``.

    If it ``is_alone``, no other rank receives them.
    """
    read = _with_end(steps)
    while upcoming := list(islice(read, _STEPS_AT_ONCE)):
        arrive = _nothing if is_alone else _send([step for step, _ in upcoming])
        for step, states in upcoming:
            piece = step.pieces[rank] if isinstance(step, GlobalStep) else NO_BATCH
            yield Announced(step, states, partial(_received, piece, arrive, _CPU))


def receive_steps(rank: int, device: torch.device | None) -> Iterator[Announced]:
    """Return the steps that the main process announces, with the pieces of ``rank`` on ``device``, or on the CPU."""
    while True:
        steps, arrive = dispatch_batch()
        for step in steps:
            if isinstance(step, GlobalStep):
                yield Announced(step, None, partial(_received, step.pieces[rank], arrive, device or _CPU))
            elif step is None:
                yield Announced(None)
            else:
                yield Announced(
                    StateError(
                        f"Rank 0 reads the data for all ranks and failed with `{step}`. See its output for the "
                        "traceback. This rank also stops."
                    )
                )


def _nothing() -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=_CPU)


def _received(piece: Any, arrive: Callable[[], torch.Tensor], device: torch.device) -> Any:
    """Return a piece once its tensors have arrived; the sending rank has it already."""
    buffer = arrive()
    return _piece(piece, buffer, device) if isinstance(piece, Outline) else piece


def _with_end(
    steps: Iterator[tuple[GlobalStep, ReadStates]],
) -> Iterator[tuple[GlobalStep | Exception | None, ReadStates | None]]:
    """Yield the steps, and then the error that ended them, or None."""
    try:
        yield from steps
    except Exception as error:  # noqa: BLE001 - raised when its step is due
        yield error, None
    else:
        yield None, None


def _send(steps: Sequence[GlobalStep | Exception | None]) -> Callable[[], torch.Tensor]:
    """Announce steps, whose pieces are sent as outlines, and start to send their tensors."""
    tensors: list[tuple[int, torch.Tensor]] = []
    announced: list[GlobalStep | str | None] = []
    used = 0
    for step in steps:
        if isinstance(step, Exception):
            announced.append(f"{type(step).__name__}: {step}")
            continue
        if step is None:
            announced.append(None)
            continue
        outlines: list[Any] = []
        for piece in step.pieces:
            if piece is not NO_BATCH:
                piece = _outline(piece, used, tensors)
                used = piece.stop
            outlines.append(piece)
        announced.append(step._replace(pieces=outlines))
    return dispatch_batch(announced, tensors)[1]


def dispatch_batch(
    steps: Sequence[GlobalStep | str | None] = (),
    tensors: Sequence[tuple[int, torch.Tensor]] = (),
) -> tuple[Sequence[GlobalStep | str | None], Callable[[], torch.Tensor]]:
    """Return the steps that rank 0 announces, and a function that waits for the bytes of their tensors.

    Every rank must call it; it blocks until all have, and raises on all if one has called another operation.

    Args:
        steps: On rank 0: steps of outlines, and at the end an error or None.
        tensors: On rank 0: tensors of any shape and device, with their offsets among the bytes.

    Returns:
        The function returns ``(num_bytes,)`` uint8 on a device that the transport supports.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return steps, _nothing
    with transport.lock:
        steps = broadcast_from(transport, Call(dispatch_batch), steps, source=0)
        pieces = [piece for step in steps if isinstance(step, GlobalStep) for piece in step.pieces]
        num_bytes = max((piece.stop for piece in pieces if piece is not NO_BATCH), default=0)
        if not num_bytes:
            return steps, _nothing
        buffer = torch.empty(num_bytes, dtype=torch.uint8, device=_CPU)
        for start, tensor in tensors:
            flat = tensor.reshape(-1).view(torch.uint8)
            buffer[start : start + flat.numel()].copy_(flat)
        return steps, transport.begin_broadcast(buffer.to(transport.device_for(_CPU)), source=0)


def _outline(piece: Any, start: int, tensors: list[tuple[int, torch.Tensor]]) -> Outline:
    """Return the outline of a piece, and add its tensors, whose bytes start at ``start``."""
    used = 0

    def reserve(tensor: torch.Tensor) -> Slot:
        nonlocal used
        tensor = tensor.detach().contiguous()
        slot = Slot(tensor.dtype, tuple(tensor.shape), used, tensor.numel() * tensor.element_size())
        if slot.num_bytes:
            tensors.append((start + used, tensor))
        used += -(-slot.num_bytes // _ALIGNMENT) * _ALIGNMENT
        return slot

    return Outline(recursively_apply(reserve, piece, test_type=_is_dense), start, start + used)


def _piece(outline: Outline, buffer: torch.Tensor, device: torch.device) -> Any:
    """Return a piece in new memory."""
    local = buffer[outline.start : outline.stop].to(device, copy=True)

    def fetch(slot: Slot) -> torch.Tensor:
        return local[slot.start : slot.start + slot.num_bytes].view(slot.dtype).view(slot.shape)

    return recursively_apply(fetch, outline.skeleton, test_type=lambda value: isinstance(value, Slot))


def _is_dense(value: object) -> bool:
    """Whether the value is a strided tensor; others are pickled with the structure."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
