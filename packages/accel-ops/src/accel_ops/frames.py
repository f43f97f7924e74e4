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
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

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
_REMEMBERED_VIEWS = 64

V = TypeVar("V")


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


class FrameTable:
    """The frames of all ranks, on the CPU, in memory that the next exchange uses again.

    This rank's row is written, those of the others are received.

    Attributes:
        table: ``(world_size, frame_bytes)`` of uint8.
        rows: The rows of the table.
        own: This rank's row.
        memory: The bytes of the table.
    """

    def __init__(self, *, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self._history = FrameHistory(world_size=world_size)
        self._make_room(0)

    def _make_room(self, frame_bytes: int) -> None:
        self.frame_bytes = frame_bytes
        self.table = torch.empty((self.world_size, frame_bytes), dtype=torch.uint8)
        self.rows = self.table.unbind(0)
        self.own = self.rows[self.rank]
        self.memory = self.table.numpy().reshape(-1).data
        self._views: dict[Hashable, object] = {}

    def begin(self, digest: bytes, payload_bytes: int) -> None:
        """Make room for frames of the size that is due and write this rank's header."""
        size = self._history.frame_bytes()
        if size != self.frame_bytes:
            self._make_room(size)
        _HEADER.pack_into(self.memory, self.rank * size, _MAGIC, digest, payload_bytes)

    def end(self) -> Exchange:
        """Read the headers of all ranks."""
        headers = [
            _HEADER.unpack_from(self.memory, rank * self.frame_bytes) for rank in range(self.world_size)
        ]
        digests = tuple([digest if magic == _MAGIC else None for magic, digest, _ in headers])
        payload_bytes = tuple([size if magic == _MAGIC else 0 for magic, _, size in headers])
        self._history.record(max(payload_bytes))
        return Exchange(self, digests, payload_bytes)

    def fits(self, payload_bytes: int) -> bool:
        """Tell whether a payload of that size rides in a frame."""
        return payload_bytes <= self.frame_bytes - HEADER_BYTES

    @property
    def payloads(self) -> torch.Tensor:
        """The payloads as rows of ``(world_size, room)``; what follows the announced bytes is undefined."""
        return self.table[:, HEADER_BYTES:]

    def put(self, payload: bytes) -> None:
        """Write this rank's payload."""
        start = self.rank * self.frame_bytes + HEADER_BYTES
        self.memory[start : start + len(payload)] = payload

    def payload_of(self, rank: int, num_bytes: int) -> bytes:
        """Return a copy of the first bytes of a payload."""
        start = rank * self.frame_bytes + HEADER_BYTES
        return self.memory[start : start + num_bytes].tobytes()

    def view(self, key: bytes, make: Callable[[FrameTable], V]) -> V:
        """Return what ``make`` returns for the table, remembered as long as the table stays where it is."""
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _REMEMBERED_VIEWS:
                self._views.clear()
            view = self._views[key] = make(self)
        return view  # type: ignore[return-value]  # what this key's `make` made


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the headers of all ranks say."""

    #: With the payloads, which the next exchange overwrites.
    frames: FrameTable
    #: One per rank; ``None`` where the bytes are no header of ours.
    digests: tuple[bytes | None, ...]
    #: Bytes of payload that each rank announced.
    payload_bytes: tuple[int, ...]

    @property
    def rides(self) -> bool:
        """Whether the payload of every rank is in its frame."""
        return self.frames.fits(max(self.payload_bytes))

    @property
    def agrees(self) -> bool:
        """Whether every rank sent the same digest."""
        return self.digests[0] is not None and self.digests.count(self.digests[0]) == len(self.digests)


def exchange(
    transport: Transport, *, digest: bytes, payload_bytes: int, write: Callable[[FrameTable], object] | None
) -> Exchange:
    """Send one frame and receive those of all ranks; every rank must call, and each blocks until all have.

    Args:
        digest: 16 bytes that are equal on two ranks when they mean the same operation on the same structure.
        payload_bytes: What this rank has to send.
        write: Puts the payload into this rank's frame; called only if it fits.
    """
    frames = transport.frames
    frames.begin(digest, payload_bytes)
    if write is not None and payload_bytes and frames.fits(payload_bytes):
        write(frames)
    transport.share(frames)
    return frames.end()


def exchange_bytes(transport: Transport, *, digest: bytes, payload: bytes) -> tuple[Exchange, list[bytes]]:
    """Send bytes of any length to all ranks and return those of every rank; blocks until all have called.

    The list is empty if the ranks do not agree on the digest.
    """
    seen = exchange(
        transport, digest=digest, payload_bytes=len(payload), write=lambda frames: frames.put(payload)
    )
    if not seen.agrees:
        return seen, []
    if seen.rides:
        return seen, [seen.frames.payload_of(rank, size) for rank, size in enumerate(seen.payload_bytes)]
    padded = torch.empty(max(seen.payload_bytes), dtype=torch.uint8)
    padded.numpy().data[: len(payload)] = payload
    rows = transport.all_gather(padded.to(transport.control_device)).cpu().numpy()
    return seen, [rows[rank, :size].tobytes() for rank, size in enumerate(seen.payload_bytes)]
