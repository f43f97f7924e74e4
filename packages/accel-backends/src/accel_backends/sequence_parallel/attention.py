"""Attention over sequences whose tokens are sharded: one function, whatever the ranks exchange for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import _functional_collectives as collectives
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.checkpoint import checkpoint

from accel_backends.sequence_parallel.tokens import Exchange, SharedTokens
from accel_state.errors import ConfigError

# Read in torch 2.13, which has no public names for collectives with gradients (pytorch/pytorch#123989 added these).
# That of gathering is new in 2.13 (docs/decisions/0020-torch-2-9-is-the-oldest-release.md).
_all_gather = (
    getattr(collectives, "all_gather_single_autograd", None) or collectives.all_gather_tensor_autograd
)
_all_to_all = collectives.all_to_all_single_autograd

MAX_PAIRS = 2**24
"""Pairs of a query and a key in one mask; attention with more is computed in blocks of queries."""
_MIN_ROWS = 256


def sequence_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tokens: SharedTokens,
    *,
    is_causal: bool,
    window: int | None = None,
    dropout: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    """Return the attention of this rank's tokens over the full sequences. Communicates: all ranks of ``tokens``.

    Args:
        query: ``(batch, heads, num_local, features)`` of the tokens of this rank.
        key: The same with as many heads, or with fewer, which several heads of the query share.
        value: As ``key``.
        tokens: The sequences, and what the ranks exchange.
        is_causal: Tokens see only themselves and earlier ones.
        window: How many tokens each sees at most, itself included; None: any number.
        dropout: The share of weights that are dropped.
        scale: The factor for scores; None: that of torch.

    Raises:
        ConfigError: If these are not the tokens of this rank, or the ranks cannot have as many heads each.
    """
    sizes = query.shape[-2], key.shape[-2]
    if sizes != (tokens.num_local, tokens.num_local):
        raise ConfigError(
            f"Attention has {sizes[0]} queries and {sizes[1]} keys, but each rank has {tokens.num_local} "
            "tokens of the sequences that are shared now. Meanwhile neither a cache, as in `generate`, nor other "
            "sequences, nor attention over those of an encoder are possible. Do it outside of the block or the "
            "loop in which sequences are shared."
        )
    if window is not None and not is_causal:
        raise ConfigError(
            f"Attention lets tokens see {window} others on both sides (`sliding_window`), which "
            "ranks that share sequences do for earlier tokens only. Set `cp_size` and `sp_size` to 1."
        )
    attend = partial(_attend, tokens=tokens, is_causal=is_causal, window=window, dropout=dropout, scale=scale)
    if tokens.exchange is Exchange.HEADS:
        return _by_heads(query, key, value, tokens, attend)
    if tokens.exchange is Exchange.KEYS:
        return _by_keys(query, key, value, tokens, attend)
    output: Tensor = checkpoint(
        _by_keys, query, key, value, tokens, attend, use_reentrant=False, preserve_rng_state=dropout > 0
    )
    return output


def _by_keys(query: Tensor, key: Tensor, value: Tensor, tokens: SharedTokens, attend: Any) -> Tensor:
    """Gather the keys and values of all ranks."""
    cut = tokens.cut
    local = torch.cat([key, value], -1).contiguous()
    gathered = _all_gather(local, 0, tokens.group)
    keys, values = cut.whole_of(gathered.chunk(cut.size), -2).split_with_sizes(
        [key.shape[-1], value.shape[-1]], -1
    )
    step = tokens.num_tokens // cut.num_chunks
    pieces = query.chunk(len(cut.chunks()), -2)
    return torch.cat(
        [
            attend(piece, keys, values, start=chunk * step)
            for chunk, piece in zip(cut.chunks(), pieces, strict=True)
        ],
        -2,
    )


def _by_heads(query: Tensor, key: Tensor, value: Tensor, tokens: SharedTokens, attend: Any) -> Tensor:
    """Exchange token shards for head shards and back: https://arxiv.org/abs/2309.14509 (Ulysses).

    Heads of keys that are fewer than the ranks are repeated, so that each rank has those that its queries need.
    """
    size = tokens.cut.size
    repeats = key_repeats(query.shape[1], key.shape[1], num_ranks=size)
    if repeats > 1:
        key, value = (one.repeat_interleave(repeats, dim=1) for one in (key, value))
    query, key, value = _to_heads((query, key, value), size, tokens.group)
    return _to_tokens(attend(query, key, value, start=0), size, tokens.group)


def key_repeats(num_heads: int, num_key_heads: int, *, num_ranks: int) -> int:
    """Return how often each key head must be repeated for all ranks to have as many, and those that their heads need.

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


def _to_heads(shards: tuple[Tensor, ...], size: int, group: dist.ProcessGroup) -> list[Tensor]:
    """Return all tokens of this rank's heads, for this rank's tokens of all heads; one collective for all tensors."""
    by_rank = [torch.unflatten(shard, 1, (size, -1)).transpose(0, 1) for shard in shards]
    received = _exchange(torch.cat([one.reshape(size, -1) for one in by_rank], dim=1), group)
    widths = [one[0].numel() for one in by_rank]
    return [
        one.reshape(like.shape).permute(1, 2, 0, 3, 4).flatten(2, 3)
        for one, like in zip(received.split_with_sizes(widths, dim=1), by_rank, strict=True)
    ]


def _to_tokens(outputs: Tensor, size: int, group: dist.ProcessGroup) -> Tensor:
    """Return this rank's tokens of all heads, for all tokens of this rank's heads."""
    by_rank = torch.unflatten(outputs, 2, (size, -1)).permute(2, 0, 1, 3, 4)
    return _exchange(by_rank.contiguous(), group).transpose(0, 1).flatten(1, 2)


def _exchange(by_rank: Tensor, group: dist.ProcessGroup) -> Tensor:
    return _all_to_all(by_rank, None, None, group)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    *,
    start: int,
    tokens: SharedTokens,
    is_causal: bool,
    window: int | None,
    dropout: float,
    scale: float | None,
) -> Tensor:
    """Return the attention of the tokens from ``start`` on over the keys of full sequences."""
    end = start + query.shape[-2]
    if not tokens.needs_mask(is_causal=is_causal, window=window):
        last = end if is_causal else tokens.num_tokens
        bias: Any = None
        if is_causal and start:
            # torch 2.13 cannot make it in a mode for dispatch, such as `FlopCounterMode` or selective checkpointing.
            with _disable_current_modes():
                bias = causal_lower_right(end - start, last)
        return F.scaled_dot_product_attention(
            query,
            keys[..., :last, :],
            values[..., :last, :],
            attn_mask=bias,
            is_causal=is_causal and not start,
            dropout_p=dropout,
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
        )
    masked = partial(_masked, tokens=tokens, is_causal=is_causal, window=window, dropout=dropout, scale=scale)
    outputs = []
    for rows, columns in _blocks(start, end, len(query), tokens, is_causal=is_causal, window=window):
        piece = query[..., rows.start - start : rows.stop - start, :]
        given = piece, keys[..., columns, :], values[..., columns, :], rows, columns
        if (rows.start, rows.stop) == (start, end):
            return masked(*given)
        # The mask is made again for the backward pass: all of them would be as large as that of all tokens.
        outputs.append(checkpoint(masked, *given, use_reentrant=False, preserve_rng_state=dropout > 0))
    return torch.cat(outputs, -2)


def _blocks(
    start: int, end: int, num_sequences: int, tokens: SharedTokens, *, is_causal: bool, window: int | None
) -> Iterator[tuple[slice, slice]]:
    """Yield queries from ``start`` to ``end``, and the keys that they may see, `MAX_PAIRS` of them at a time."""
    num_pairs = MAX_PAIRS // num_sequences
    while start < end:
        first = tokens.first_visible(start, window) if is_causal else 0
        if is_causal:  # rows * (earlier + rows) pairs
            earlier = start - first
            num_rows = (math.isqrt(earlier * earlier + 4 * num_pairs) - earlier) // 2
        else:
            num_rows = num_pairs // tokens.num_tokens
        last = min(end, start + max(num_rows, _MIN_ROWS))
        yield slice(start, last), slice(first, last if is_causal else tokens.num_tokens)
        start = last


def _masked(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: slice,
    columns: slice,
    *,
    tokens: SharedTokens,
    is_causal: bool,
    window: int | None,
    dropout: float,
    scale: float | None,
) -> Tensor:
    repeats = query.shape[1] // keys.shape[1]
    if repeats > 1:  # With a mask and heads that share keys, torch 2.13 computes all scores on CUDA.
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
    mask = tokens.visible(
        torch.arange(rows.start, rows.stop, device=query.device),
        torch.arange(columns.start, columns.stop, device=query.device),
        is_causal=is_causal,
        window=window,
    )
    return F.scaled_dot_product_attention(query, keys, values, attn_mask=mask, dropout_p=dropout, scale=scale)
