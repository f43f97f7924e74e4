"""Attention by exchange of heads is that of one process over full sequences, forward and backward."""

import pytest
import torch
import torch.distributed as dist

from accel_backends.sequence_parallel.attention import key_repeats, sequence_attention
from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.tokens import Exchange, SharedTokens
from accel_state.errors import ConfigError

LENGTH, WINDOW = 6, 3
IS_KEY = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0]])
CASES = [
    # heads, heads of keys, is causal, window, has padding
    (6, 6, True, None, False),
    (6, 6, False, None, False),
    (6, 3, True, None, True),
    (6, 2, True, WINDOW, False),
    (6, 1, False, None, True),
]


def whole_attention(query, key, value, *, is_causal, window, is_key):
    """Return the attention, written out."""
    per_key = query.shape[1] // key.shape[1]
    key, value = (one.repeat_interleave(per_key, dim=1) for one in (key, value))
    scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
    behind = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)[None, :]
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if is_causal:
        seen &= behind >= 0
    if window is not None:
        seen &= behind < window
    seen = seen & is_key.bool()[:, None, None, :] | (behind == 0)
    return (scores.masked_fill(~seen, -torch.inf).softmax(-1) @ value) * is_key[:, None, :, None]


def compare_in_ranks():
    size, rank = dist.get_world_size(), dist.get_rank()
    cut = SequenceCut(size, rank)
    for heads, key_heads, is_causal, window, has_padding in CASES:
        torch.manual_seed(0)
        shapes = [(2, heads, LENGTH, 4), (2, key_heads, LENGTH, 4), (2, key_heads, LENGTH, 5)]
        wholes = [torch.randn(shape, requires_grad=True) for shape in shapes]
        weights = torch.randn(2, heads, LENGTH, 5)
        is_key = IS_KEY if has_padding else torch.ones_like(IS_KEY)
        expected = whole_attention(*wholes, is_causal=is_causal, window=window, is_key=is_key)
        (expected * weights).sum().backward()

        parts = [cut.part_of(one.detach(), 2).requires_grad_() for one in wholes]
        tokens = SharedTokens(
            cut, dist.group.WORLD, num_tokens=LENGTH, num_real=LENGTH, exchange=Exchange.HEADS
        )
        tokens = tokens.with_mask(cut.part_of(is_key, 1))
        # Nobody reads what padding sees.
        found = sequence_attention(*parts, tokens, is_causal=is_causal, window=window)
        found = found * cut.part_of(is_key, 1)[:, None, :, None]
        (found * cut.part_of(weights, 2)).sum().backward()
        torch.testing.assert_close(found, cut.part_of(expected, 2), msg=f"{heads} {key_heads}")
        for part, whole in zip(parts, wholes, strict=True):
            torch.testing.assert_close(part.grad, cut.part_of(whole.grad, 2), msg=f"{heads} {key_heads}")


@pytest.mark.parametrize("size", [2, 3])
def test_outputs_and_gradients_are_those_of_one_process(world, size):
    world(size).run(compare_in_ranks)


def test_keys_are_repeated_no_more_than_needed():
    assert [key_repeats(8, number, num_ranks=4) for number in (8, 4, 2, 1)] == [1, 1, 2, 4]
    assert key_repeats(12, 6, num_ranks=4) == 2
    assert key_repeats(12, 3, num_ranks=2) == 2


def test_heads_that_cannot_be_distributed_are_refused_with_what_could():
    with pytest.raises(
        ConfigError, match=r"6 heads .* 4 ranks \(`sp_size`\).* to one of 1, 2, 3, 6, or .* `cp_size`"
    ):
        key_repeats(6, 2, num_ranks=4)
