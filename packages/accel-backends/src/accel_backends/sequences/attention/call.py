"""One call of attention over shared sequences, and what ranks that compute it together look like."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from accel_backends.sequences.tokens import SharedTokens


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """What `scaled_dot_product_attention` was asked for, beside query, key and value.

    Attributes:
        tokens: The sequences.
        is_causal: Tokens see only themselves and earlier ones of the whole sequence.
        window: How many tokens each sees at most, itself included; None: any number.
        dropout: The share of weights that are dropped.
        scale: What scores are multiplied by; None: by the size of the heads.
        has_groups: Several heads of the query share one of key and value.
    """

    tokens: SharedTokens
    is_causal: bool
    window: int | None = None
    dropout: float = 0.0
    scale: float | None = None
    has_groups: bool = False


class SharedAttention(Protocol):
    """A way in which ranks that share sequences compute attention together."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        """Return ``(batch, heads, num_local, features)`` of this rank's tokens, of tensors of that shape.

        Communicates: all ranks that share the sequences.
        """
