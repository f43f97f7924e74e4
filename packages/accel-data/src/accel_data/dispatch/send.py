"""Steps sent from the main process to the other ranks: a description, and the bytes of all tensors in one broadcast."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accel_data.dispatch.scatter import ScatteredStep
from accel_data.step import StepShape
from accel_ops.agreement import Call
from accel_ops.nested.structures import recursively_apply
from accel_ops.objects import broadcast_from
from accel_ops.transport import current_transport
from accel_state.errors import StateError

_ALIGNMENT = 16
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Slot:
    """The place of a tensor in a structure, and where its bytes are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Outline:
    """What a rank needs to rebuild its piece: the structure with a `Slot` for each tensor, and where its bytes are."""

    skeleton: Any
    start: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class SentStep:
    """The description of a step.

    Args:
        outlines: Of the pieces of all ranks.
        num_bytes: Of their tensors together.
        shape: The rows of all ranks.
        num_following: How many ranks, the first ones, also have a batch in the next step.
        num_batches: Batches that were read for the step.
    """

    outlines: list[Outline]
    num_bytes: int
    shape: StepShape
    num_following: int
    num_batches: int


@dataclass(frozen=True, slots=True)
class OwnStep:
    """A step as one rank sees it.

    Args:
        piece: This rank's batch, `NO_BATCH` if it has none.
        shape: The rows of all ranks.
        num_following: How many ranks, the first ones, also have a batch in the next step.
        num_batches: Batches that were read for the step.
    """

    piece: Any
    shape: StepShape
    num_following: int
    num_batches: int


def send_step(step: ScatteredStep, *, num_following: int) -> None:
    """Send a step to all ranks, on the main process. The others call `receive_step`; it blocks until all have.

    Raises:
        Exception: Pickle's, if a piece cannot be pickled. The other ranks raise `DistributedOperationException`.
    """
    if current_transport().world_size == 1:
        return
    tensors: list[tuple[int, torch.Tensor]] = []
    outlines, total = [], 0
    for piece in step.pieces:
        outlines.append(_outline(piece, total, tensors))
        total += outlines[-1].num_bytes
    dispatch_batch(SentStep(outlines, total, step.shape, num_following, step.num_batches), tensors)


def send_end() -> None:
    """Send, on the main process, that there is no step."""
    dispatch_batch(None)


def send_failure(error: Exception) -> None:
    """Send, on the main process, that reading failed."""
    dispatch_batch(f"{type(error).__name__}: {error}")


def receive_step(rank: int, device: torch.device | None) -> OwnStep | None:
    """Wait for a step; None if there is none.

    Args:
        rank: This rank among those that read different data.
        device: Where its batch goes. None: the CPU.

    Raises:
        StateError: If the main process failed.
    """
    step, buffer = dispatch_batch()
    if step is None:
        return None
    if isinstance(step, str):
        raise StateError(
            f"Rank 0 reads the data for all ranks and failed with `{step}`. See its output for the traceback. "
            "This rank stops too."
        )
    piece = _piece(step.outlines[rank], buffer, device or _CPU)
    return OwnStep(piece, step.shape, step.num_following, step.num_batches)


def dispatch_batch(
    step: SentStep | str | None = None, tensors: list[tuple[int, torch.Tensor]] | None = None
) -> tuple[SentStep | str | None, torch.Tensor]:
    """Return what rank 0 sends, and the bytes of its tensors; a collective, compared with what other ranks call.

    Args:
        step: On rank 0: a step, an error, or None for the end.
        tensors: On rank 0: tensors with their offsets among the bytes.
    """
    transport = current_transport()
    if transport.world_size == 1:
        return step, torch.empty(0, dtype=torch.uint8)
    with transport.lock:
        step = broadcast_from(transport, Call(dispatch_batch), step, source=0)
        buffer = torch.empty(step.num_bytes if isinstance(step, SentStep) else 0, dtype=torch.uint8)
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

    return Outline(recursively_apply(place, piece, test_type=_is_dense), begin, used)


def _piece(outline: Outline, buffer: torch.Tensor, device: torch.device) -> Any:
    """Return a piece with memory of its own."""
    own = buffer[outline.start : outline.start + outline.num_bytes].to(device, copy=True)

    def fetch(slot: Slot) -> torch.Tensor:
        return own[slot.start : slot.start + slot.num_bytes].view(slot.dtype).view(slot.shape)

    return recursively_apply(fetch, outline.skeleton, test_type=lambda value: isinstance(value, Slot))


def _is_dense(value: object) -> bool:
    """Whether the value is a strided tensor; others are pickled with the structure."""
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_nested
