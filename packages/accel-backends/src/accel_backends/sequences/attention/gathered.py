"""Attention of a rank's queries over the keys and values of all ranks, gathered before."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right
from torch.utils._python_dispatch import _disable_current_modes

from accel_backends.sequences.attention.call import AttentionCall

# Named anew in torch 2.13, which warns of the old names (docs/decisions/0020-torch-2-9-is-the-oldest-release.md).
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def gathered_attention(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
    """Compute attention with one gathering of keys and values. See `SharedAttention`."""
    cut = call.tokens.cut
    parts = _Gathering.apply(torch.cat([key, value], -1), call.tokens.group)  # type: ignore[no-untyped-call]
    whole = cut.whole_of(parts.unbind(0), -2)
    keys, values = whole[..., : key.shape[-1]], whole[..., key.shape[-1] :]
    step = call.tokens.num_tokens // cut.num_chunks
    outputs = [
        _of_chunk(piece, keys, values, call, start=chunk * step)
        for chunk, piece in zip(cut.chunks(), query.chunk(len(cut.chunks()), -2), strict=True)
    ]
    return torch.cat(outputs, -2)


def _of_chunk(query: Tensor, keys: Tensor, values: Tensor, call: AttentionCall, *, start: int) -> Tensor:
    """Return what the tokens from ``start`` on see."""
    tokens, end = call.tokens, start + query.shape[-2]
    first = max(0, start - call.window + 1) if call.is_causal and call.window is not None else 0
    last = end if call.is_causal else tokens.num_tokens
    if call.is_causal and tokens.sees_all_earlier(call.window):
        # torch 2.13 cannot make it in a mode for dispatch, such as `FlopCounterMode` or selective checkpointing.
        with _disable_current_modes():
            mask: Any = causal_lower_right(end - start, last)
    else:
        mask = tokens.visible(
            torch.arange(start, end, device=query.device),
            torch.arange(first, last, device=query.device),
            is_causal=call.is_causal,
            window=call.window,
        )
    return F.scaled_dot_product_attention(
        query,
        keys[..., first:last, :],
        values[..., first:last, :],
        attn_mask=mask,
        dropout_p=call.dropout,
        scale=call.scale,
        enable_gqa=call.has_groups,
    )


class _Gathering(torch.autograd.Function):
    """All parts, one after the other; each rank's gradient is the sum of what all have of its part."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = part.new_empty((group.size(), *part.shape))
        _all_gather(parts.flatten(0, 1), part.contiguous(), group=group)
        return parts

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        part = gradient.new_empty(gradient.shape[1:])
        _reduce_scatter(part, gradient.contiguous().flatten(0, 1), group=ctx.group)
        return part, None
