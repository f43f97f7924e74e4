"""The first message of an operation: a buffer of agreed size with a header and, if it fits, the payload.

Every operation on host memory starts with the same collective, an all-gather of one frame per rank. Its size
depends on the frames before it alone, of which all ranks have seen the same headers, so the ranks can never
disagree on it, whatever they were called with. The header carries a digest of operation, structure, dtypes
and shapes: each rank compares all of them and either all go on or all raise. Small payloads ride in the
frame, so that agreeing costs no message of its own.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from accel_ops.transport.protocol import Transport

HEADER_BYTES = 32
DIGEST_BYTES = 16
_MAGIC = 0x6163_6365_6C01  # "accel", version 1
_HEADER = struct.Struct(f"<q{DIGEST_BYTES}sq")
_SMALLEST_FRAME = 256
_LARGEST_FRAME = 1 << 18
_LARGEST_GATHERED = 1 << 21
_REMEMBERED = 16


class FrameHistory:
    """Chooses the size of the next frame from the payloads of the last ones."""

    def __init__(self, *, world_size: int) -> None:
        share = _LARGEST_GATHERED // world_size
        self._largest = max(1024, min(_LARGEST_FRAME, share))
        self._payloads: deque[int] = deque([2048], maxlen=_REMEMBERED)

    def frame_bytes(self) -> int:
        """Return the size of the next frame, enough for the largest recent payload that can ride."""
        needed = HEADER_BYTES + max(self._payloads)
        step = max(_SMALLEST_FRAME, 1 << (needed.bit_length() - 4))
        return -(-needed // step) * step

    def record(self, payload_bytes: int) -> None:
        """Note the largest payload that any rank announced; one too large for any frame counts as none."""
        self._payloads.append(payload_bytes if HEADER_BYTES + payload_bytes <= self._largest else 0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The frames of all ranks."""

    #: ``(world_size, frame_bytes)``, on the CPU.
    frames: torch.Tensor
    #: One per rank; ``None`` where the bytes are no header of ours.
    digests: tuple[bytes | None, ...]
    #: Bytes of payload that each rank announced.
    payload_bytes: tuple[int, ...]

    @property
    def rides(self) -> bool:
        """Whether the payload of every rank is in its frame."""
        return max(self.payload_bytes) <= self.frames.shape[1] - HEADER_BYTES

    @property
    def agrees(self) -> bool:
        """Whether every rank sent the same digest."""
        return self.digests[0] is not None and self.digests.count(self.digests[0]) == len(self.digests)

    @property
    def payloads(self) -> torch.Tensor:
        """The payloads as rows of ``(world_size, room)``; what follows the announced bytes is undefined."""
        return self.frames[:, HEADER_BYTES:]


def exchange(
    transport: Transport, *, digest: bytes, payload_bytes: int, write: Callable[[torch.Tensor], object] | None
) -> Exchange:
    """Send one frame and receive those of all ranks; every rank must call, and each blocks until all have.

    Args:
        digest: 16 bytes that are equal on two ranks when they mean the same operation on the same structure.
        payload_bytes: What this rank has to send.
        write: Puts the payload into the uint8 tensor of that length that it is given; called only if it fits.
    """
    size = transport.history.frame_bytes()
    frame = torch.empty(size, dtype=torch.uint8)
    _HEADER.pack_into(frame.numpy().data, 0, _MAGIC, digest, payload_bytes)
    if write is not None and 0 < payload_bytes <= size - HEADER_BYTES:
        write(frame[HEADER_BYTES : HEADER_BYTES + payload_bytes])
    frames = transport.all_gather(frame.to(transport.control_device)).cpu()
    memory = frames.numpy().data.cast("B", (frames.numel(),))
    return _received(
        transport.history,
        frames,
        [_HEADER.unpack_from(memory, rank * size) for rank in range(transport.world_size)],
    )


def _received(
    history: FrameHistory, frames: torch.Tensor, headers: Sequence[tuple[int, bytes, int]]
) -> Exchange:
    digests = tuple([digest if magic == _MAGIC else None for magic, digest, _ in headers])
    payload_bytes = tuple([size if magic == _MAGIC else 0 for magic, _, size in headers])
    history.record(max(payload_bytes))
    return Exchange(frames, digests, payload_bytes)


def exchange_bytes(transport: Transport, *, digest: bytes, payload: bytes) -> tuple[Exchange, list[bytes]]:
    """Send bytes of any length to all ranks and return those of every rank; blocks until all have called.

    The list is empty if the ranks do not agree on the digest.
    """

    def write(room: torch.Tensor) -> None:
        room.numpy().data[: len(payload)] = payload

    seen = exchange(transport, digest=digest, payload_bytes=len(payload), write=write)
    if not seen.agrees:
        return seen, []
    rows, start = seen.frames, HEADER_BYTES
    if not seen.rides:
        padded = torch.empty(max(seen.payload_bytes), dtype=torch.uint8)
        write(padded)
        rows, start = transport.all_gather(padded.to(transport.control_device)).cpu(), 0
    memory = rows.numpy()
    return seen, [
        memory[rank, start : start + size].tobytes() for rank, size in enumerate(seen.payload_bytes)
    ]
