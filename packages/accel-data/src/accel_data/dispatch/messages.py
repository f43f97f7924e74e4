"""Steps on their way from the reading rank to the others: one broadcast each, while they do not grow."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from accel_data.dispatch.codec import Outline, outline_pieces, read_piece, write_tensors
from accel_data.dispatch.dealing import Deal
from accel_data.dispatch.deferred import DeferredError
from accel_data.step_shape import StepShape
from accel_ops.collectives.broadcasting import broadcast_buffer
from accel_ops.transport import current_transport
from accel_state.errors import StateError

#: Buffers are multiples of this, so that outlines that vary a little do not need a second broadcast.
_GRAIN = 1 << 12
_FIELDS = 5
_CPU = torch.device("cpu")


def dispatch_batch(buffer: torch.Tensor, source: int) -> torch.Tensor:
    """Send a message to all ranks, or receive it; checked against what the others do."""
    return broadcast_buffer(buffer, source=source, operation=dispatch_batch)


class Kind(IntEnum):
    """What a message says."""

    STEP = 0
    END = 1
    FAILURE = 2


@dataclass(frozen=True, slots=True)
class Step:
    """A step as one rank sees it.

    Args:
        piece: Its own rows, `NO_BATCH` if it has none.
        shape: The rows of all ranks.
        num_following: Ranks, the first ones, that also have a batch in the next step.
        num_batches: Batches that were read for the step.
    """

    piece: Any
    shape: StepShape
    num_following: int
    num_batches: int


class Messages:
    """Both ends of the way. Every rank makes the same calls in the same order, the reading one with something
    to say.

    A message is a header, the outlines of the pieces if they changed, and the bytes of the tensors. It is
    broadcast in a buffer of the size of the previous message; if it does not fit, the header says so and the
    whole follows.

    Args:
        num_ranks: Ranks that data is dealt to.
        rank: This one among them.
        source: The rank of the world that reads.
    """

    def __init__(self, *, num_ranks: int, rank: int, source: int = 0) -> None:
        self._num_ranks = num_ranks
        self._rank = rank
        self._source = source
        self._header_bytes = 8 * (_FIELDS + 2 * num_ranks)
        self._room = self._rounded(0)
        self._outlines: list[Outline] = []
        self._sent = b""

    def send(self, deal: Deal, *, num_following: int) -> None:
        """Send a step; on the reading rank.

        Raises:
            Exception: What was raised because a piece cannot be sent. The others are told that this rank failed.
        """
        deferred = DeferredError()
        with deferred:
            outline, tensors, size = outline_pieces(deal.pieces)
        if deferred.error is not None:
            self.send_word(Kind.FAILURE)
            raise deferred.error
        news = b"" if outline == self._sent else outline
        self._sent = outline
        fields = [
            Kind.STEP,
            size,
            len(news),
            num_following,
            deal.num_batches,
            *deal.shape.rows,
            *deal.shape.real,
        ]
        self._send(fields, news, tensors, size)

    def send_word(self, kind: Kind) -> None:
        """Send a message without a step; on the reading rank."""
        self._send([kind, *[0] * (_FIELDS - 1 + 2 * self._num_ranks)], b"", [], 0)

    def receive(self) -> Step | None:
        """Wait for a step; None if there is none.

        Raises:
            StateError: If the reading rank failed.
        """
        buffer = self._broadcast(self._buffer(self._room))
        kind, size, news, num_following, num_batches, *counts = self._header(buffer)
        if kind == Kind.FAILURE:
            raise StateError(
                f"Rank {self._source} reads the data for all ranks and failed; "
                "its own error says why. This rank stops too."
            )
        if kind == Kind.END:
            return None
        body = self._header_bytes + news
        if body + size > self._room:
            buffer = self._broadcast(self._buffer(body + size))
        self._make_room(size, news)
        if news:
            self._outlines = pickle.loads(  # noqa: S301  # written by the reading rank of this job
                buffer[self._header_bytes : body].cpu().numpy().tobytes()
            )
        shape = StepShape(tuple(counts[: self._num_ranks]), tuple(counts[self._num_ranks :]))
        piece = read_piece(self._outlines[self._rank], buffer[body:])
        return Step(piece, shape, num_following, num_batches)

    def _send(
        self, fields: list[int], news: bytes, tensors: list[tuple[int, torch.Tensor]], size: int
    ) -> None:
        body = self._header_bytes + len(news)
        header = torch.tensor(fields, dtype=torch.int64).view(torch.uint8)
        fits = body + size <= self._room
        buffer = self._buffer(self._room)
        buffer[: self._header_bytes].copy_(header)
        if not fits:
            self._broadcast(buffer)
            buffer = self._buffer(body + size)
        if news:
            buffer[self._header_bytes : body].copy_(torch.frombuffer(bytearray(news), dtype=torch.uint8))
        write_tensors(tensors, buffer[body:])
        self._broadcast(buffer)
        if fields[0] == Kind.STEP:
            self._make_room(size, len(news))

    def _buffer(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, device=current_transport().device_for(_CPU))

    def _broadcast(self, buffer: torch.Tensor) -> torch.Tensor:
        return dispatch_batch(buffer, self._source)

    def _header(self, buffer: torch.Tensor) -> list[int]:
        fields: list[int] = buffer[: self._header_bytes].cpu().view(torch.int64).tolist()
        return fields

    def _make_room(self, size: int, news: int) -> None:
        """Choose the size of the next buffer, on both ends alike: what came last, and nothing much larger."""
        wanted = self._rounded(size + news)
        if wanted > self._room or wanted * 4 < self._room:
            self._room = wanted

    def _rounded(self, size: int) -> int:
        return self._header_bytes + -(-max(size, 1) // _GRAIN) * _GRAIN
