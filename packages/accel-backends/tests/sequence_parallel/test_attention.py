"""Both ways in which ranks compute attention over sharded sequences, next to torch's on full ones."""

import pytest
import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.flop_counter import FlopCounterMode

from accel_backends.sequence_parallel.attention import sequence_attention
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


def shared(exchange, *, is_causal=True, is_balanced=True, padding=(), starts=(), window=None, num_real=LENGTH):
    cut = SequenceCut(dist.get_world_size(), dist.get_rank(), is_balanced)
    tokens = SharedTokens(
        cut, dist.group.WORLD, num_tokens=LENGTH, num_real=num_real, exchange=exchange
    )
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
    return [
        sequence_attention(*parts, tokens, is_causal=True, dropout=dropout) for dropout in (0.0, 0.25)
    ]


@pytest.mark.parametrize("exchange", list(Exchange))
def test_each_weight_is_dropped_on_its_own_and_the_others_grow(world, exchange):
    for whole, dropped in world(2).run(weights_with_dropout, exchange):
        is_kept = dropped != 0
        torch.testing.assert_close(dropped, torch.where(is_kept, whole / 0.75, 0.0))
        assert 0.6 < is_kept[whole != 0].double().mean() < 0.9
