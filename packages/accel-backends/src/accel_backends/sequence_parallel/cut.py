"""Which tokens of a shared sequence each rank has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class SequenceCut:
    """How sequences are cut into one part for each of several ranks.

    Attributes:
        size: How many ranks share a sequence.
        rank: Which of them this is.
        is_balanced: Each rank has a piece of the head and the mirrored one of the tail, so that all have as much to do
            where tokens see only earlier ones. Otherwise a part is one piece.
    """

    size: int
    rank: int
    is_balanced: bool = False

    @property
    def num_chunks(self) -> int:
        """Into how many pieces of one size a sequence is cut; they must divide its length."""
        return 2 * self.size if self.is_balanced else self.size

    def chunks(self, rank: int | None = None) -> tuple[int, ...]:
        """Return which pieces a rank has (left out: this one), in the order in which it has them."""
        rank = self.rank if rank is None else rank
        return (rank, self.num_chunks - 1 - rank) if self.is_balanced else (rank,)

    def positions(self, length: int, device: torch.device, *, rank: int | None = None) -> Tensor:
        """Return where the tokens of a rank (left out: this one) stand in a sequence of ``length`` tokens."""
        step = length // self.num_chunks
        return torch.cat(
            [torch.arange(chunk * step, (chunk + 1) * step, device=device) for chunk in self.chunks(rank)]
        )

    def part_of(self, whole: Tensor, dim: int) -> Tensor:
        """Return a copy of this rank's part of ``whole``, whose dimension ``dim`` is that of the tokens."""
        step = whole.shape[dim] // self.num_chunks
        return torch.cat([whole.narrow(dim, chunk * step, step) for chunk in self.chunks()], dim)

    def whole_of(self, parts: Sequence[Tensor], dim: int) -> Tensor:
        """Return the whole of the ``parts`` of all ranks, in the order of the tokens."""
        placed = [
            pair
            for rank, part in enumerate(parts)
            for pair in zip(self.chunks(rank), part.chunk(len(self.chunks(rank)), dim), strict=True)
        ]
        return torch.cat([piece for _, piece in sorted(placed, key=lambda pair: pair[0])], dim)
