"""Padding and document ids of full sequences, of which each rank has some tokens."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import torch
import torch.distributed as dist
from torch import Tensor

from accel_backends.sequence_parallel.cut import SequenceCut

_STRIDE = 64


class Exchange(Enum):
    """What ranks exchange to compute attention over full sequences."""

    KEYS = "keys"
    """Keys and values are gathered, and kept for the backward pass."""
    KEYS_TWICE = "keys twice"
    """They are gathered again for the backward pass, which computes attention again."""
    HEADS = "heads"
    """Each rank has some heads of all tokens (Ulysses)."""


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """The sequences of a batch, as all ranks that have tokens of them know them.

    Attributes:
        cut: Which tokens are whose.
        group: The ranks.
        num_tokens: Tokens of a full sequence.
        num_real: Those before the padding that made the sequence divisible.
        exchange: What the ranks exchange to compute attention.
        is_key: ``(batch, num_tokens)``, whether others may see a token; None: all of them.
        is_padded_right: No token that may be seen comes after one that may not.
        documents: ``(batch, num_tokens)``, the number of the sample that a token is of; None: there is one only.
        first_of_document: For every 64th token, where its sample begins in the sequence in which it begins first.
    """

    cut: SequenceCut
    group: dist.ProcessGroup
    num_tokens: int
    num_real: int
    exchange: Exchange = Exchange.KEYS
    is_key: Tensor | None = None
    is_padded_right: bool = True
    documents: Tensor | None = None
    first_of_document: tuple[int, ...] = ()

    @property
    def num_local(self) -> int:
        """Tokens that each rank has."""
        return self.num_tokens // self.cut.size

    def with_mask(self, mask: Tensor) -> SharedTokens:
        """Return these with the ``(batch, num_local)`` padding mask of this rank.

        Communicates: all ranks. The host waits for the device.
        """
        is_key = self.gathered(mask != 0)
        real = is_key[:, : self.num_real]
        is_padded_right = (real[:, 1:] <= real[:, :-1]).all()
        has_all, is_right = torch.stack([real.all(), is_padded_right]).tolist()
        return self if has_all else replace(self, is_key=is_key, is_padded_right=is_right)

    def with_positions(self, positions: Tensor) -> SharedTokens:
        """Return these with the samples that begin where ``(batch, num_local)`` positions restart.

        Communicates: all ranks. The host waits for the device.
        """
        real = self.gathered(positions)[:, : self.num_real]
        begins = torch.nn.functional.pad(real[:, 1:] != real[:, :-1] + 1, (1, 0))
        first = (begins * torch.arange(self.num_real, device=real.device)).cummax(1).values
        *of_document, last = torch.cat([first.amin(0)[::_STRIDE], first[:, -1].amax()[None]]).tolist()
        if not last:
            return self
        documents = begins.cumsum(1)
        padding = documents[:, -1:].expand(-1, self.num_tokens - self.num_real)
        documents = torch.cat([documents, padding], 1)
        return replace(self, documents=documents, first_of_document=tuple(of_document))

    def gathered(self, part: Tensor) -> Tensor:
        """Return full sequences of the ``(batch, num_local)`` parts of all. Communicates: all ranks."""
        mine = part.to(torch.uint8) if part.dtype is torch.bool else part
        parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(self.cut.size)]
        dist.all_gather(parts, mine.contiguous(), group=self.group)
        return self.cut.whole_of(parts, 1).to(part.dtype)

    def needs_mask(self, *, is_causal: bool, window: int | None) -> bool:
        """Whether more than the order of tokens determines which keys a query sees.

        Padding after the real tokens does not, where these see only earlier ones; what it sees itself is unused.
        """
        if self.documents is not None or window is not None:
            return True
        if is_causal:
            return self.is_key is not None and not self.is_padded_right
        return self.is_key is not None or self.num_real < self.num_tokens

    def first_visible(self, position: int, window: int | None) -> int:
        """Return a key before which no token from ``position`` on sees any, if it sees only earlier ones."""
        first = max(0, position - window + 1) if window is not None else 0
        if self.documents is None:
            return first
        return max(first, self.first_of_document[min(position, self.num_real - 1) // _STRIDE])

    def visible(self, queries: Tensor, keys: Tensor, *, is_causal: bool, window: int | None = None) -> Tensor:
        """Return which keys each query sees: ``(batch or 1, 1, queries, keys)``.

        Args:
            queries: Positions of the queries in the full sequence.
            keys: Positions of the keys.
            is_causal: Tokens see only themselves and earlier ones.
            window: How many tokens each sees, itself included, in either direction; None: any number.
        """
        ahead = keys[None, :] - queries[:, None]
        seen = ((ahead <= 0) if is_causal else torch.ones_like(ahead, dtype=torch.bool))[None, None]
        if window is not None:
            seen = seen & (ahead.abs() < window)
        if self.is_key is not None:
            seen = seen & self.is_key[:, None, None, keys]
        if self.num_real < self.num_tokens:
            seen = seen & (keys < self.num_real)
        if self.documents is not None:
            seen = seen & (self.documents[:, queries, None] == self.documents[:, None, keys])[:, None]
        return seen
