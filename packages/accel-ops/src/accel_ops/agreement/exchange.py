"""The exchange before a collective: every rank sends a digest of its call, and all go on or all raise."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import torch

from accel_ops.agreement.arrival import await_arrival, earlier_divergence
from accel_ops.agreement.calls import Call, CallDescription, explain_difference
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException
from accel_state.runtime import current_runtime, has_runtime

_CPU = torch.device("cpu")


def is_debugging() -> bool:
    """Tell whether debug mode is on (``ACCELERATE_DEBUG_MODE``, ``accel launch --debug``)."""
    return has_runtime() and current_runtime().debug


def must_check(transport: Transport, devices: Collection[torch.device]) -> bool:
    """Tell whether the ranks compare their calls before tensors on these devices are sent.

    On the CPU always, on accelerators in debug mode. Without tensors there is nothing to wait for, so they do.
    """
    return is_debugging() or any(transport.is_checked(device) for device in devices or (_CPU,))


def agree(transport: Transport, call: Call, *, number: int = 0) -> list[int]:
    """Compare the call with those of the other ranks, and return the ``number`` that each rank gave.

    One all-gather of 24 bytes per rank. All ranks must call this, and it blocks until all have.

    Raises:
        DistributedOperationException: On every rank, if the calls differ; in debug mode also if a rank does
            not come in time.
    """
    if is_debugging():
        await_arrival(transport, call)
    try:
        rows = _swap(transport, call, number)
    except RuntimeError as error:  # the backend's, which does not know for what it was used
        description = call.describe()
        error.add_note(
            f"This rank was in `{description.operation}`, called from {description.call_site}, and waited for the "
            "other ranks to call it too."
        )
        raise
    if any(row[:2] != rows[0][:2] for row in rows):
        hint = earlier_divergence(transport) if is_debugging() else ""
        raise DistributedOperationException(explain_difference(_descriptions(transport, call)) + hint)
    return [number for _, _, number in rows]


def _swap(transport: Transport, call: Call, number: int) -> list[list[int]]:
    own = torch.tensor([*call.digest(), number], dtype=torch.int64, device=_CPU)
    (rows,) = transport.all_gather([own.to(transport.device_for(_CPU))])
    swapped: list[list[int]] = rows.tolist()
    return swapped


def _descriptions(transport: Transport, call: Call) -> list[CallDescription]:
    """Return the calls of all ranks; every rank has seen the same digests, so all come here."""
    own = call.describe().to_json().encode()
    sizes = [number for _, _, number in _swap(transport, call, len(own))]
    return [CallDescription.from_json(text) for text in gather_bytes(transport, own, sizes)]


def gather_bytes(transport: Transport, own: bytes, sizes: list[int]) -> list[bytes]:
    """Return the bytes of every rank, given how many each of them has."""
    (rows,) = transport.all_gather([to_tensor(transport, own, size=max(sizes))])
    received = rows.cpu().numpy()
    return [received[rank, :size].tobytes() for rank, size in enumerate(sizes)]


def to_tensor(transport: Transport, own: bytes, *, size: int) -> torch.Tensor:
    """Return bytes as a tensor of ``size`` elements that the transport can send; the rest is undefined."""
    tensor = torch.empty(size, dtype=torch.uint8, device=_CPU)
    tensor.numpy()[: len(own)] = np.frombuffer(own, dtype=np.uint8)
    return tensor.to(transport.device_for(_CPU))
