"""Attention of a rank's queries over keys and values that travel from rank to rank, each with a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from accel_backends.sequences.attention.call import AttentionCall
from accel_state.errors import ConfigError

#: Queries whose scores are computed at a time.
_NUM_ROWS = 1024


def ring_attention(query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
    """Compute attention without holding the keys and values of more than two ranks. See `SharedAttention`.

    Liu et al., Ring Attention with Blockwise Transformers, https://arxiv.org/abs/2310.01889.
    """
    if call.dropout:
        raise ConfigError(
            f"Attention has a dropout of {call.dropout:g}, which it cannot have where keys and values travel in a ring "
            "(`cp_comm_strategy` `alltoall`). Set it to 0, or `cp_comm_strategy` to `allgather`."
        )
    if call.has_groups:
        repeats = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    output: Tensor = _Ring.apply(query, key, value, call)  # type: ignore[no-untyped-call]
    return output


class _Ring(torch.autograd.Function):
    """Softmax over parts: each corrects what was found before. Backward sends keys and values around once more."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, call: AttentionCall) -> Tensor:
        exact = torch.promote_types(query.dtype, torch.float32)
        total = query.new_full((*query.shape[:-1], 1), -torch.inf, dtype=exact)
        output = query.new_zeros((*query.shape[:-1], value.shape[-1]), dtype=exact)
        for source, held in _around(torch.cat([key, value], -1), call):
            keys, values = held[..., : key.shape[-1]], held[..., key.shape[-1] :]
            for rows, scores in _scores(query, keys, call, source):
                before = total[..., rows, :].clone()
                total[..., rows, :] = torch.logaddexp(before, scores.logsumexp(-1, keepdim=True))
                base = _finite(total[..., rows, :])
                output[..., rows, :] *= (before - base).exp()
                output[..., rows, :] += (scores - base).exp().to(values.dtype) @ values
        ctx.save_for_backward(query, key, value, output, total)
        ctx.call = call
        return output.to(query.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        query, key, value, output, total = ctx.saved_tensors
        call: AttentionCall = ctx.call
        known = (gradient * output).sum(-1, keepdim=True)
        of_query = torch.zeros_like(query, dtype=output.dtype)
        # The gradients of the keys and values that are held travel with them, once more than these: home.
        of_held = key.new_zeros((*key.shape[:-1], key.shape[-1] + value.shape[-1]), dtype=output.dtype)
        width = key.shape[-1]
        for source, held in _around(torch.cat([key, value], -1), call):
            keys, values = held[..., :width], held[..., width:]
            of_keys, of_values = of_held[..., :width], of_held[..., width:]
            for rows, scores in _scores(query, keys, call, source):
                some = gradient[..., rows, :]
                weights = (scores - _finite(total[..., rows, :])).exp()
                of_scores = weights * ((some @ values.mT) - known[..., rows, :]) * _scale(query, call)
                of_query[..., rows, :] += of_scores.to(keys.dtype) @ keys
                of_keys += of_scores.to(query.dtype).mT @ query[..., rows, :]
                of_values += weights.to(some.dtype).mT @ some
            of_held, arrivals = _send(of_held, call.tokens.group)
            _wait(arrivals)
        of_key, of_value = of_held[..., :width].to(key.dtype), of_held[..., width:].to(value.dtype)
        return of_query.to(query.dtype), of_key, of_value, None


def _around(own: Tensor, call: AttentionCall) -> Iterator[tuple[int, Tensor]]:
    """Yield the rank whose tensor is here, and that tensor: this one's first, then those before it."""
    cut, held = call.tokens.cut, own.contiguous()
    for step in range(cut.size):
        is_last = step == cut.size - 1
        coming, arrivals = (held, []) if is_last else _send(held, call.tokens.group)
        yield (cut.rank - step) % cut.size, held
        _wait(arrivals)
        held = coming


def _send(tensor: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, list[dist.Work]]:
    """Send ``tensor`` to the next rank; return what the one before sends, and what to wait for before it is read."""
    size, rank = group.size(), group.rank()
    coming = torch.empty_like(tensor)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, tensor, group=group, group_peer=(rank + 1) % size),
            dist.P2POp(dist.irecv, coming, group=group, group_peer=(rank - 1) % size),
        ]
    )
    return coming, works


def _wait(works: list[dist.Work]) -> None:
    for work in works:
        work.wait()


def _scores(query: Tensor, keys: Tensor, call: AttentionCall, source: int) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of the query, and their scores with the keys of rank ``source``, minus infinity where unseen."""
    tokens = call.tokens
    if call.is_causal and min(tokens.cut.chunks(source)) > max(tokens.cut.chunks()):
        return
    positions = tokens.cut.positions(tokens.num_tokens, query.device)
    exact = torch.promote_types(query.dtype, torch.float32)
    of_keys = tokens.cut.positions(tokens.num_tokens, query.device, rank=source)
    for start in range(0, tokens.num_local, _NUM_ROWS):
        rows = slice(start, start + _NUM_ROWS)
        scores = (query[..., rows, :] @ keys.mT).to(exact) * _scale(query, call)
        seen = tokens.visible(positions[rows], of_keys, is_causal=call.is_causal, window=call.window)
        yield rows, scores if seen is None else scores.masked_fill(~seen, -torch.inf)


def _finite(total: Tensor) -> Tensor:
    """Return logarithms of sums as they are, but for queries that see nothing: these get zeros, as from torch."""
    return total.masked_fill(total == -torch.inf, 0.0)


def _scale(query: Tensor, call: AttentionCall) -> float:
    return query.shape[-1] ** -0.5 if call.scale is None else call.scale
