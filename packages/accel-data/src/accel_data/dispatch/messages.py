"""Steps sent from the main process to the other ranks: one broadcast each, unless they grow."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from accel_data.dispatch.codec import Outline, outline_pieces, read_piece, write_tensors
from accel_data.dispatch.scatter import ScatteredStep
from accel_data.step import StepShape
from accel_ops.collectives import broadcast_buffer
from accel_ops.transport import current_transport
from accel_state.errors import StateError

#: Buffers are multiples of this, so that outlines that vary a little do not need a second broadcast.
_GRAIN = 1 << 12
_FIELDS = 5
_CPU = torch.device("cpu")


def dispatch_batch(buffer: torch.Tensor, source: int) -> torch.Tensor:
    """Send a message to all ranks, or receive it; a collective, checked against what the other ranks call."""
    return broadcast_buffer(buffer, source=source, operation=dispatch_batch)


class Kind(IntEnum):
    """What a message says."""

    STEP = 0
    END = 1
    FAILURE = 2


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


class Messages:
    """The connection between the main process and the other ranks.

    Each message is sent by the main process and received by all others; they make their calls in the same order.
    A message is a header, the outlines of the pieces if they changed, and the bytes of the tensors. It is
    broadcast in a buffer of the size of the previous message. If it does not fit, only the header is, and the
    message follows in a second broadcast.

    Args:
        num_ranks: Ranks that read different data.
        rank: This one among them.
        source: The main process's rank in the world.
    """

    def __init__(self, *, num_ranks: int, rank: int, source: int = 0) -> None:
        self._num_ranks = num_ranks
        self._rank = rank
        self._source = source
        self._header_bytes = 8 * (_FIELDS + 2 * num_ranks)
        self._capacity = self._rounded(0)
        self._outlines: list[Outline] = []
        self._sent = b""

    def send(self, step: ScatteredStep, *, num_following: int) -> None:
        """Send a step, on the main process.

        Raises:
            Exception: If a piece cannot be pickled. The other ranks get a `StateError`.
        """
        try:
            outline, tensors, size = outline_pieces(step.pieces)
        except Exception:
            self.send_kind(Kind.FAILURE)
            raise
        changed = b"" if outline == self._sent else outline
        self._sent = outline
        fields = [
            Kind.STEP,
            size,
            len(changed),
            num_following,
            step.num_batches,
            *step.shape.rows,
            *step.shape.num_valid,
        ]
        self._send(fields, changed, tensors, size)

    def send_kind(self, kind: Kind) -> None:
        """Send a message without a step, on the main process."""
        self._send([kind, *[0] * (_FIELDS - 1 + 2 * self._num_ranks)], b"", [], 0)

    def receive(self) -> OwnStep | None:
        """Wait for a step; None if there is none.

        Raises:
            StateError: If the main process failed.
        """
        buffer = self._broadcast(self._buffer(self._capacity))
        kind, size, outline_bytes, num_following, num_batches, *counts = self._header(buffer)
        if kind == Kind.FAILURE:
            raise StateError(
                f"Rank {self._source} reads the data for all ranks and failed; "
                "its own error says why. This rank stops too."
            )
        if kind == Kind.END:
            return None
        body = self._header_bytes + outline_bytes
        if body + size > self._capacity:
            buffer = self._broadcast(self._buffer(body + size))
        self._resize(size, outline_bytes)
        if outline_bytes:
            self._outlines = pickle.loads(  # noqa: S301  # written by the main process of this job
                buffer[self._header_bytes : body].cpu().numpy().tobytes()
            )
        shape = StepShape(tuple(counts[: self._num_ranks]), tuple(counts[self._num_ranks :]))
        piece = read_piece(self._outlines[self._rank], buffer[body:])
        return OwnStep(piece, shape, num_following, num_batches)

    def _send(
        self, fields: list[int], outlines: bytes, tensors: list[tuple[int, torch.Tensor]], size: int
    ) -> None:
        body = self._header_bytes + len(outlines)
        header = torch.tensor(fields, dtype=torch.int64).view(torch.uint8)
        fits = body + size <= self._capacity
        buffer = self._buffer(self._capacity)
        buffer[: self._header_bytes].copy_(header)
        if not fits:
            self._broadcast(buffer)
            buffer = self._buffer(body + size)
        if outlines:
            buffer[self._header_bytes : body].copy_(torch.frombuffer(bytearray(outlines), dtype=torch.uint8))
        write_tensors(tensors, buffer[body:])
        self._broadcast(buffer)
        if fields[0] == Kind.STEP:
            self._resize(size, len(outlines))

    def _buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=current_transport().device_for(_CPU))

    def _broadcast(self, buffer: torch.Tensor) -> torch.Tensor:
        return dispatch_batch(buffer, self._source)

    def _header(self, buffer: torch.Tensor) -> list[int]:
        fields: list[int] = buffer[: self._header_bytes].cpu().view(torch.int64).tolist()
        return fields

    def _resize(self, size: int, outline_bytes: int) -> None:
        """Choose the size of the next buffer from that of the last message, alike on all ranks."""
        wanted = self._rounded(size + outline_bytes)
        if wanted > self._capacity or wanted * 4 < self._capacity:
            self._capacity = wanted

    def _rounded(self, size: int) -> int:
        return self._header_bytes + -(-max(size, 1) // _GRAIN) * _GRAIN
