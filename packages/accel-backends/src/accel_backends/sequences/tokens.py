"""What ranks that share sequences know of the tokens of all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from accel_backends.sequences.cut import SequenceCut


@dataclass(frozen=True, slots=True)
class SharedTokens:
    """The sequences of a batch, as all ranks that share them know them.

    Attributes:
        cut: Which tokens are whose.
        group: The ranks.
        num_tokens: Tokens of a whole sequence.
        num_real: Those before the padding that made the sequence divisible.
        is_key: ``(batch, num_tokens)``, whether others may see a token; None: all of them.
        documents: ``(batch, num_tokens)``, the number of the sample that a token is of; None: there is one only.
    """

    cut: SequenceCut
    group: dist.ProcessGroup
    num_tokens: int
    num_real: int
    is_key: Tensor | None = None
    documents: Tensor | None = None

    @property
    def num_local(self) -> int:
        """Tokens that each rank has."""
        return self.num_tokens // self.cut.size

    def with_mask(self, mask: Tensor) -> SharedTokens:
        """Return these with the ``(batch, num_local)`` padding mask of this rank. Communicates: all that share."""
        is_key = self.gathered(mask != 0)
        return self if bool(is_key[:, : self.num_real].all()) else replace(self, is_key=is_key)

    def with_positions(self, positions: Tensor) -> SharedTokens:
        """Return these with the samples that begin where ``(batch, num_local)`` positions do not count on.

        Communicates: all that share.
        """
        real = self.gathered(positions)[:, : self.num_real]
        begins = real[:, 1:] != real[:, :-1] + 1
        if not bool(begins.any()):
            return self
        documents = torch.nn.functional.pad(begins.cumsum(1), (1, self.num_tokens - self.num_real))
        return replace(self, documents=documents)

    def gathered(self, part: Tensor) -> Tensor:
        """Return whole sequences of the ``(batch, num_local)`` parts of all. Communicates: all that share."""
        mine = part.to(torch.uint8) if part.dtype is torch.bool else part
        parts = [torch.empty_like(mine, memory_format=torch.contiguous_format) for _ in range(self.cut.size)]
        dist.all_gather(parts, mine.contiguous(), group=self.group)
        return self.cut.whole_of(parts, 1).to(part.dtype)

    def visible(
        self, queries: Tensor, keys: Tensor, *, is_causal: bool, window: int | None = None
    ) -> Tensor | None:
        """Return which keys each query sees: ``(batch or 1, 1, queries, keys)``, None where it is all of them.

        Args:
            queries: Where the queries stand in the whole sequence.
            keys: Where the keys stand.
            is_causal: Tokens see only themselves and earlier ones.
            window: How many tokens each sees, itself included, in either direction; None: any number.
        """
        ahead = keys[None, :] - queries[:, None]
        found = []
        if is_causal:
            found.append((ahead <= 0)[None, None])
        if window is not None:
            found.append((ahead.abs() < window)[None, None])
        if self.is_key is not None:
            found.append(self.is_key[:, None, None, keys])
        if self.num_real < self.num_tokens:
            found.append((keys < self.num_real)[None, None, None])
        if self.documents is not None:
            found.append((self.documents[:, queries, None] == self.documents[:, None, keys])[:, None])
        if not found:
            return None
        seen = found[0]
        for one in found[1:]:
            seen = seen & one
        return seen

    def sees_all_earlier(self, window: int | None) -> bool:
        """Whether nothing but the order of tokens says which keys a query sees."""
        return self.is_key is None and self.documents is None and window is None


def is_alike(one: SharedTokens | None, other: SharedTokens | None) -> bool:
    """Whether attention over two batches differs in nothing but what the tokens are."""
    if one is None or other is None or one is other:
        return one is other
    if (one.num_tokens, one.num_real) != (other.num_tokens, other.num_real):
        return False
    return one.is_key is other.is_key is None and one.documents is other.documents is None
