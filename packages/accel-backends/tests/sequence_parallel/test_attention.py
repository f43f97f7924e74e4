"""Both ways in which ranks compute attention over sharded sequences, next to torch's on full ones."""

import functools

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from accel_backends.sequence_parallel.attention import MAX_PAIRS, sequence_attention
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.tokens import Exchange, SharedTokens

LENGTH = 12
WAYS = [Exchange.KEYS, Exchange.KEYS_TWICE]
CASES = {
    "causal": {},
    "both directions": {"is_causal": False},
    "one piece": {"is_balanced": False},
    "padding on both sides": {"padding": [slice(0, 5), slice(7, None)]},
    "padding in both directions": {"padding": [slice(0, 5), slice(7, None)], "is_causal": False},
    "samples in one sequence": {"starts": [5, 3]},
    "window": {"window": 4, "starts": [5, 3]},
    "padded by us": {"num_real": 10, "starts": [5, 3], "is_causal": False},
}


def shared(
    exchange, *, is_causal=True, is_balanced=True, padding=(), starts=(), window=None, num_real=LENGTH
):
    cut = SequenceCut(dist.get_world_size(), dist.get_rank(), is_balanced)
    tokens = SharedTokens(cut, dist.group.WORLD, num_tokens=LENGTH, num_real=num_real, exchange=exchange)
    own, positions = masks(padding, starts)
    tokens = tokens.with_mask(cut.part_of(own, 1)).with_positions(cut.part_of(positions, 1))
    assert (tokens.is_key is None, tokens.documents is None) == (not padding, not starts)
    parts = [cut.part_of(one, 2).requires_grad_() for one in tensors()[:3]]
    output = sequence_attention(*parts, tokens, is_causal=is_causal, window=window, scale=0.3)
    (output * cut.part_of(weights(num_real), 2)).sum().backward()
    return [output.detach(), *(part.grad for part in parts)]


def masks(padding, starts):
    own, positions = torch.ones(2, LENGTH, dtype=torch.long), torch.arange(LENGTH).repeat(2, 1)
    for row, found in enumerate(padding):
        own[row, found] = 0
    for row, start in enumerate(starts):
        positions[row, start:] -= start
    return own, positions


def tensors():
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, LENGTH, 4), (2, 2, LENGTH, 4), (2, 2, LENGTH, 3), (2, 4, LENGTH, 3)]
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]


def weights(num_real):
    return tensors()[3] * (torch.arange(LENGTH) < num_real)[:, None]


def alone(*, is_causal=True, is_balanced=True, padding=(), starts=(), window=None, num_real=LENGTH):
    place = torch.arange(LENGTH)
    own, positions = masks(padding, starts)
    seen = (own != 0)[:, None] & (place < num_real)
    sample = (positions == 0).cumsum(1)
    seen = seen & (sample[:, :, None] == sample[:, None])
    if is_causal:
        seen = seen & (place[None] <= place[:, None])
    if window is not None:
        seen = seen & (place[:, None] - place[None] < window)
    wholes = [one.requires_grad_() for one in tensors()[:3]]
    output = scaled_dot_product_attention(*wholes, attn_mask=seen[:, None], enable_gqa=True, scale=0.3)
    (output * weights(num_real)).sum().backward()
    return [output.detach(), *(whole.grad for whole in wholes)]


def all_shared():
    return {(way, name): shared(way, **case) for way in WAYS for name, case in CASES.items()}


def test_ranks_compute_together_what_one_computes(world):
    each = world(2).run(all_shared)
    for (way, name), found in each[0].items():
        case = CASES[name]
        num_real = case.get("num_real", LENGTH)
        for one, *parts in zip(alone(**case), found, each[1][way, name], strict=True):
            whole = SequenceCut(2, 0, case.get("is_balanced", True)).whole_of(parts, 2)
            torch.testing.assert_close(
                whole[:, :, :num_real], one[:, :, :num_real], msg=lambda text, c=(way, name): f"{c}: {text}"
            )


def in_a_mode():
    """Compute as usual, and within a mode that sees every operation, as selective checkpointing does."""
    alone = shared(Exchange.KEYS)
    with FlopCounterMode(display=False) as flops:
        again = shared(Exchange.KEYS)
    return alone, again, flops.get_total_flops()


def test_operations_can_be_counted(world):
    for alone, again, flops in world(2).run(in_a_mode):
        torch.testing.assert_close(again, alone)
        assert flops > 0


def weights_with_dropout(exchange):
    """Return the weights of this rank's queries or heads, without and with dropout: attention over one-hot values."""
    tokens = SharedTokens(
        SequenceCut(2, dist.get_rank()),
        dist.group.WORLD,
        num_tokens=LENGTH,
        num_real=LENGTH,
        exchange=exchange,
    )
    values = torch.eye(LENGTH, dtype=torch.float64).expand(2, 2, -1, -1)
    parts = [tokens.cut.part_of(one, 2) for one in (*tensors()[:2], values)]
    return [sequence_attention(*parts, tokens, is_causal=True, dropout=dropout) for dropout in (0.0, 0.25)]


@pytest.mark.parametrize("exchange", list(Exchange))
def test_each_weight_is_dropped_on_its_own_and_the_others_grow(world, exchange):
    for whole, dropped in world(2).run(weights_with_dropout, exchange):
        is_kept = dropped != 0
        torch.testing.assert_close(dropped, torch.where(is_kept, whole / 0.75, 0.0))
        assert 0.6 < is_kept[whole != 0].double().mean() < 0.9


LONG = 6144
"""Tokens, of which all pairs do not fit into one mask."""


class LargestTensor(TorchDispatchMode):
    """Notes how many elements the largest tensor has that was made."""

    num_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(one, torch.Tensor):
                self.num_elements = max(self.num_elements, one.numel())
        return result


def long_tensors():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, heads, LONG, 4, generator=generator) for heads in (4, 2, 2, 4)]


@functools.cache
def alone_by_sample(is_packed):
    """Return outputs and gradients of one process that computes each piece of the sequence for itself."""
    pieces = [slice(0, 3000), slice(3000, LONG)] if is_packed else [slice(100, LONG)]
    wholes = [one.requires_grad_() for one in long_tensors()[:3]]
    output = torch.cat(
        [
            scaled_dot_product_attention(
                *(one[..., piece, :] for one in wholes), is_causal=True, enable_gqa=True
            )
            for piece in pieces
        ],
        2,
    )
    seen = slice(LONG - output.shape[2], None)
    (output * long_tensors()[3][..., seen, :]).sum().backward()
    return [output.detach(), *(whole.grad[..., seen, :] for whole in wholes)]


def long_in_ranks(exchange, *, is_packed):
    cut = SequenceCut(2, dist.get_rank())
    tokens = SharedTokens(cut, dist.group.WORLD, num_tokens=LONG, num_real=LONG, exchange=exchange)
    place = torch.arange(LONG)[None]
    if is_packed:
        tokens = tokens.with_positions(cut.part_of(torch.where(place < 3000, place, place - 3000), 1))
    else:
        tokens = tokens.with_mask(cut.part_of(place >= 100, 1))
    parts = [cut.part_of(one, 2).requires_grad_() for one in long_tensors()[:3]]
    weights = long_tensors()[3] * (1 if is_packed else (torch.arange(LONG) >= 100)[:, None])
    with LargestTensor() as largest:
        output = sequence_attention(*parts, tokens, is_causal=True)
        (output * cut.part_of(weights, 2)).sum().backward()
    return [output.detach(), *(part.grad for part in parts)], largest.num_elements


@pytest.mark.parametrize("exchange", list(Exchange))
@pytest.mark.parametrize("is_packed", [True, False], ids=["packed", "padded"])
def test_no_mask_has_all_pairs_of_tokens(world, exchange, is_packed):
    (first, num_first), (second, num_second) = world(2).run(long_in_ranks, exchange, is_packed=is_packed)
    for one, *parts in zip(alone_by_sample(is_packed), first, second, strict=True):
        found = torch.cat(parts, 2)[..., LONG - one.shape[2] :, :]
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-4)
    assert max(num_first, num_second) <= MAX_PAIRS < LONG * LONG


def padded_after_tokens():
    """Return whether padding before tokens, and after them, needs a mask where tokens see earlier ones only."""
    cut, masks = SequenceCut(2, dist.get_rank()), torch.ones(2, 2, LENGTH)
    masks[0, 1, :5] = masks[1, 1, 5:] = 0
    tokens = SharedTokens(cut, dist.group.WORLD, num_tokens=LENGTH, num_real=LENGTH)
    return [tokens.with_mask(cut.part_of(mask, 1)).needs_mask(is_causal=True, window=None) for mask in masks]


def test_padding_after_the_tokens_needs_no_mask(world):
    assert world(2).run(padded_after_tokens) == [[True, False]] * 2
