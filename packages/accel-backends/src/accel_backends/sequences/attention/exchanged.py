"""Attention by exchange of heads (Ulysses): each rank computes some heads of whole sequences."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives
from torch.nn import functional as F

from accel_backends.sequences.attention.call import AttentionCall
from accel_state.errors import ConfigError


def exchanged_attention(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
    """Compute attention with an exchange of heads before and after. See `SharedAttention`.

    Heads of keys that are fewer than the ranks are repeated, so that each rank has those which its queries need.

    Raises:
        ConfigError: If the ranks cannot have as many heads each.
    """
    tokens = call.tokens
    size = tokens.cut.size
    repeats = key_repeats(query.shape[1], key.shape[1], num_ranks=size)
    if repeats > 1:
        key, value = (one.repeat_interleave(repeats, dim=1) for one in (key, value))
    query, key, value = _to_heads((query, key, value), size, tokens.group)
    is_plain = call.is_causal and tokens.sees_all_earlier(call.window)
    places = torch.arange(tokens.num_tokens, device=query.device)
    outputs = F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=None
        if is_plain
        else tokens.visible(places, places, is_causal=call.is_causal, window=call.window),
        dropout_p=call.dropout,
        is_causal=is_plain,
        scale=call.scale,
        enable_gqa=call.has_groups,
    )
    return _to_tokens(outputs, size, tokens.group)


def key_repeats(num_heads: int, num_key_heads: int, *, num_ranks: int) -> int:
    """Return how often each head of keys must be there for all ranks to have as many, and those that their heads need.

    Raises:
        ConfigError: If the ranks cannot have as many heads each.
    """
    if num_heads % num_ranks:
        fitting = ", ".join(str(size) for size in range(1, num_heads + 1) if num_heads % size == 0)
        raise ConfigError(
            f"{num_heads} heads of attention cannot be exchanged by {num_ranks} ranks (`sp_size`), which must have as "
            f"many each. Set `sp_size` to one of {fitting}, or share sequences by `cp_size`, "
            "which does not divide heads."
        )
    per_key = num_heads // num_key_heads
    return next(n for n in range(1, per_key + 1) if per_key % n == 0 and num_key_heads * n % num_ranks == 0)


def _to_heads(parts: tuple[Tensor, ...], size: int, group: dist.ProcessGroup) -> list[Tensor]:
    """Return all tokens of this rank's heads, for this rank's tokens of all heads; one collective for all tensors."""
    by_rank = [torch.unflatten(part, 1, (size, -1)).transpose(0, 1) for part in parts]
    received = _exchange(torch.cat([one.reshape(size, -1) for one in by_rank], dim=1), group)
    widths = [one[0].numel() for one in by_rank]
    return [
        one.reshape(like.shape).permute(1, 2, 0, 3, 4).flatten(2, 3)
        for one, like in zip(received.split_with_sizes(widths, dim=1), by_rank, strict=True)
    ]


def _to_tokens(whole: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's tokens of all heads, for all tokens of this rank's heads."""
    by_rank = torch.unflatten(whole, 2, (size, -1)).permute(2, 0, 1, 3, 4)
    return _exchange(by_rank.contiguous(), group).transpose(0, 1).flatten(1, 2)


def _exchange(by_rank: Tensor, group: dist.ProcessGroup) -> Tensor:
    return collectives.all_to_all_single_autograd(by_rank, None, None, group)
