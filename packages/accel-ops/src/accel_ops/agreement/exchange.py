"""The exchange before a collective: every rank sends a digest of its call, and all go on or all raise."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch

from accel_ops.agreement.calls import Call, CallDescription, explain_difference, qualified, shapes_of
from accel_ops.transport import Transport
from accel_state.arrival import await_arrival, earlier_divergence
from accel_state.errors import DistributedOperationException
from accel_state.runtime import current_runtime, has_runtime

_CPU = torch.device("cpu")
#: Digest and number, and what keeps the attached bytes aligned for every dtype.
_HEADER_BYTES = 32
_MOST_ATTACHED_BYTES = 1 << 14
#: What a rank receives, from all of them together.
_MOST_RECEIVED_BYTES = 1 << 20


def is_debugging() -> bool:
    """Tell whether debug mode is on (``ACCELERATE_DEBUG_MODE``, ``accel launch --debug``)."""
    return has_runtime() and current_runtime().debug


def must_check(transport: Transport, devices: Collection[torch.device]) -> bool:
    """Tell whether the ranks compare their calls before tensors on these devices are sent.

    On the CPU always, on accelerators in debug mode. Without tensors there is nothing to wait for, so they do.
    """
    return is_debugging() or any(transport.is_checked(device) for device in devices or (_CPU,))


@dataclass(frozen=True, slots=True)
class Replies:
    """What the ranks sent along with their calls.

    Attributes:
        numbers: One of each rank.
        attached: The bytes of each rank, ``(world_size, room)``.
    """

    numbers: list[int]
    attached: torch.Tensor


def room_for_attached(transport: Transport) -> int:
    """Return how many bytes each rank may attach to its call."""
    return min(_MOST_ATTACHED_BYTES, _MOST_RECEIVED_BYTES // transport.world_size // 16 * 16)


def agree(
    transport: Transport, call: Call, *, number: int = 0, attached: torch.Tensor | None = None
) -> Replies:
    """Compare the call with those of the other ranks, and return what each rank sent along with its own.

    One all-gather, of the same size for every call. All ranks must call this, and it blocks until all have.

    Args:
        transport: The ranks.
        call: What this rank is about to do.
        number: Any number.
        attached: Bytes, at most :func:`room_for_attached`.

    Raises:
        DistributedOperationException: On every rank, if the calls differ; in debug mode also if a rank does
            not come in time.
    """
    if is_debugging():
        ranks, name = (transport.store, transport.rank, transport.world_size), qualified(call.operation)
        await_arrival(*ranks, name, data=str(shapes_of(call.data)), kind="collective")
    try:
        heads, bodies = _swap(transport, call, number, attached)
    except RuntimeError as error:  # the backend's, which does not know for what it was used
        description = call.describe()
        error.add_note(
            f"This rank was in `{description.operation}`, called from {description.call_site}, and waited for the "
            "other ranks to call it too."
        )
        raise
    if any(head[:2] != heads[0][:2] for head in heads):
        hint = earlier_divergence(transport.store, world_size=transport.world_size) if is_debugging() else ""
        raise DistributedOperationException(explain_difference(_descriptions(transport, call)) + hint)
    return Replies([number for _, _, number in heads], bodies)


def _swap(
    transport: Transport, call: Call, number: int, attached: torch.Tensor | None = None
) -> tuple[list[list[int]], torch.Tensor]:
    """Return digest and number of each rank, and the attached bytes, ``(world_size, room)``."""
    own = torch.empty(_HEADER_BYTES + room_for_attached(transport), dtype=torch.uint8, device=_CPU)
    own[:24].view(torch.int64).copy_(torch.tensor([*call.digest(), number], dtype=torch.int64, device=_CPU))
    if attached is not None:
        own[_HEADER_BYTES : _HEADER_BYTES + len(attached)] = attached
    (rows,) = transport.all_gather([own.to(transport.device_for(_CPU))])
    rows = rows.to(_CPU)
    heads: list[list[int]] = rows[:, :24].view(torch.int64).tolist()
    return heads, rows[:, _HEADER_BYTES:]


def _descriptions(transport: Transport, call: Call) -> list[CallDescription]:
    """Return the calls of all ranks; every rank has seen the same digests, so all come here."""
    own = call.describe().to_json().encode()
    sizes = [number for _, _, number in _swap(transport, call, len(own))[0]]
    return [CallDescription.from_json(text) for text in gather_bytes(transport, own, sizes)]


def gather_bytes(transport: Transport, own: bytes, sizes: list[int]) -> list[bytes]:
    """Return the bytes of every rank, given how many each of them has."""
    (rows,) = transport.all_gather([to_tensor(own, size=max(sizes)).to(transport.device_for(_CPU))])
    received = rows.cpu().numpy()
    return [received[rank, :size].tobytes() for rank, size in enumerate(sizes)]


def to_tensor(own: bytes, *, size: int) -> torch.Tensor:
    """Return bytes as a tensor of ``size`` elements; the rest is undefined."""
    tensor = torch.empty(size, dtype=torch.uint8, device=_CPU)
    tensor.numpy()[: len(own)] = np.frombuffer(own, dtype=np.uint8)
    return tensor
