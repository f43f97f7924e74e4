"""A dispatched epoch: the main process reads, scatters and sends steps, which the other ranks receive.

A step is sent as a description and, in one broadcast, the bytes of all tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch

from accel_data.dispatch.scatter import ScatterPlan
from accel_data.step import NO_BATCH, GlobalStep, ReadStates
from accel_ops.agreement import Call
from accel_ops.nested.structures import recursively_apply
from accel_ops.objects import broadcast_from
from accel_ops.transport import current_transport
from accel_state.errors import StateError

T = TypeVar("T")

_ALIGNMENT = 16
_CPU = torch.device("cpu")


class Slot(NamedTuple):  # pickled faster than a dataclass
    """The place of a tensor in a structure, and where its bytes are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


class Outline(NamedTuple):
    """What a rank needs to rebuild its piece: the structure with a `Slot` for each tensor, and where its bytes are."""

    skeleton: Any
    start: int
    stop: int


def read_steps(
    batches: Iterator[tuple[Any, int | None]],
    plan: ScatterPlan,
    *,
    drop_last: bool,
    read_states: Callable[[], ReadStates],
) -> Iterator[tuple[GlobalStep, ReadStates]]:
    """Yield the steps of an epoch and the states after each, reading no further than the step that is asked for.

    Args:
        batches: The whole data: batches, and how many samples each was made from if that is known.
        plan: Scatters them.
        drop_last: Leave out a last step with too few batches.
        read_states: Returns the states of data set and loader.
    """
    first: list[Any] = []
    while group := list(islice(batches, plan.batches_per_step)):
        if drop_last and len(group) < plan.batches_per_step:
            return
        plain, sizes = [batch for batch, _ in group], [size for _, size in group]
        if plan.even and not first:
            # Copies: a rank may change its batch of the first step in place.
            first = [recursively_apply(torch.clone, batch) for batch in plain]
        yield plan.scatter(plain, first, sizes), read_states()


def send_steps(
    steps: Iterator[tuple[GlobalStep, ReadStates]], *, is_alone: bool = False
) -> Iterator[tuple[GlobalStep, ReadStates | None]]:
    """Send all ranks their steps and yield them, with the states after them; on the main process.

    The step after the next is read right after a step was sent, while the other ranks work. An error while
    reading is raised when its step is due; until then all ranks continue.

    Args:
        steps: The epoch.
        is_alone: Whether no other rank receives them.

    Raises:
        Exception: What was raised while reading; the other ranks raise `StateError`. Pickle's error, if a piece
            cannot be pickled; there they raise `DistributedOperationException`.
    """
    read = _with_error(steps)
    current, following = next(read, None), next(read, None)
    if current is None and not is_alone:
        dispatch_batch(None)
    while isinstance(current, tuple):
        step, states = current
        ahead = following[0] if isinstance(following, tuple) else step
        step = replace(step, num_following=0 if following is None else ahead.num_with_batch)
        if not is_alone:
            _send(step)
        upcoming = next(read, None)
        # At its end the data set may only now know that the epoch has ended: the state is that at the time of saving.
        yield step, states if step.num_following else None
        current, following = following, upcoming
    if current is not None:
        if not is_alone:
            dispatch_batch(f"{type(current).__name__}: {current}")
        raise current


def receive_steps(rank: int, device: torch.device | None) -> Iterator[tuple[GlobalStep, None]]:
    """Yield the steps that the main process sends, of whose pieces only that of this rank is there.

    Args:
        rank: This rank among those that read different data.
        device: Where its batches go. None: the CPU.

    Raises:
        StateError: If the main process failed.
    """
    while True:
        step, buffer = dispatch_batch()
        if step is None:
            return
        if isinstance(step, str):
            raise StateError(
                f"Rank 0 reads the data for all ranks and failed with `{step}`. See its output for the traceback. "
                "This rank stops too."
            )
        pieces: list[Any] = [NO_BATCH] * len(step.pieces)
        pieces[rank] = _piece(step.pieces[rank], buffer, device or _CPU)
        yield replace(step, pieces=pieces), None
        if not step.num_following:
            return


def _with_error(steps: Iterator[T]) -> Iterator[T | Exception]:
    """Yield the steps, and then the error that ended them, if there is one."""
    try:
        yield from steps
    except Exception as error:  # noqa: BLE001 - raised when its step is due
        yield error


def _send(step: GlobalStep) -> None:
    """Send a step whose pieces are outlines, and their tensors."""
    if current_transport().world_size == 1:
        return
    tensors: list[tuple[int, torch.Tensor]] = []
    outlines: list[Outline] = []
    for piece in step.pieces:
        outlines.append(_outline(piece, outlines[-1].stop if outlines else 0, tensors))
    dispatch_batch(replace(step, pieces=outlines), tensors)


def dispatch_batch(
    step: GlobalStep | str | None = None, tensors: list[tuple[int, torch.Tensor]] | None = None
) -> tuple[GlobalStep | str | None, torch.Tensor]:
    """Return what rank 0 sends, and the bytes of its tensors; a collective, compared with what other ranks call.

    Args:
        step: On rank 0: a step of outlines, an error, or None for the end.
        tensors: On rank 0: tensors with their offsets among the bytes.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return step, torch.empty(0, dtype=torch.uint8)
    with transport.lock:
        step = broadcast_from(transport, Call(dispatch_batch), step, source=0)
        num_bytes = step.pieces[-1].stop if isinstance(step, GlobalStep) else 0
        buffer = torch.empty(num_bytes, dtype=torch.uint8)
        for start, tensor in tensors or ():
            flat = tensor.reshape(-1).view(torch.uint8)
            buffer[start : start + flat.numel()].copy_(flat)
        if len(buffer):
            (buffer,) = transport.broadcast([buffer.to(transport.device_for(_CPU))], source=0)
    return step, buffer


def _outline(piece: Any, begin: int, tensors: list[tuple[int, torch.Tensor]]) -> Outline:
    """Return the outline of a piece, and add its tensors, whose bytes begin at ``begin``."""
    used = 0

    def place(tensor: torch.Tensor) -> Slot:
        nonlocal used
        tensor = tensor.detach().contiguous()
        slot = Slot(tensor.dtype, tuple(tensor.shape), used, tensor.numel() * tensor.element_size())
        if slot.num_bytes:
            tensors.append((begin + used, tensor))
        used += -(-slot.num_bytes // _ALIGNMENT) * _ALIGNMENT
        return slot

    return Outline(recursively_apply(place, piece, test_type=_is_dense), begin, begin + used)


def _piece(outline: Outline, buffer: torch.Tensor, device: torch.device) -> Any:
    """Return a piece with memory of its own."""
    local = buffer[outline.start : outline.stop].to(device, copy=True)

    def fetch(slot: Slot) -> torch.Tensor:
        return local[slot.start : slot.start + slot.num_bytes].view(slot.dtype).view(slot.shape)

    return recursively_apply(fetch, outline.skeleton, test_type=lambda value: isinstance(value, Slot))


def _is_dense(value: object) -> bool:
    """Whether the value is a strided tensor; others are pickled with the structure."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
