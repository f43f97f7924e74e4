"""Whose sequences a plain attention module computes with, and what it refuses."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from accel_backends.sequence_parallel.cut import SequenceCut
from accel_backends.sequence_parallel.plain_attention import PlainAttention
from accel_backends.sequence_parallel.sharing import SequenceSharing
from accel_backends.sequence_parallel.tokens import SharedTokens
from accel_state.errors import ConfigError


class Attention(nn.Module):
    def forward(self, hidden):
        return scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)


class Attending:
    """An attention module of one of two ranks."""

    def __init__(self, module):
        self.cut = SequenceCut(2, dist.get_rank())
        self.sharing = SequenceSharing(self.cut, dist.group.WORLD, setting="cp_size")
        self.forward = PlainAttention(module.forward, name="a", sharing=self.sharing)

    def checkpointed(self, hidden, *, bind):
        length = 2 * hidden.shape[-2]
        with self.sharing.using(SharedTokens(self.cut, dist.group.WORLD, num_tokens=length, num_real=length)):
            forward = self.sharing.bound(self.forward) if bind else self.forward
            return checkpoint(forward, hidden, use_reentrant=False).sum()


def inputs(length):
    generator = torch.Generator().manual_seed(length)
    return torch.randn(1, 1, length, 2, generator=generator).requires_grad_()


def gradients_of_two():
    attending = Attending(Attention())
    rows = [attending.cut.part_of(inputs(length).detach(), 2).requires_grad_() for length in (6, 4)]
    losses = [attending.checkpointed(one, bind=True) for one in rows]
    sum(losses).backward()
    return [one.grad for one in rows]


def test_a_second_run_computes_with_the_sequences_of_the_first(world):
    rows = inputs(6), inputs(4)
    sum(Attention()(one).sum() for one in rows).backward()
    found = [torch.cat(parts, 2) for parts in zip(*world(2).run(gradients_of_two), strict=True)]
    torch.testing.assert_close(found, [one.grad for one in rows])


def refusals():
    with pytest.raises(ConfigError, match="`a` is computed again in a backward pass, where it is unknown"):
        Attending(Attention()).checkpointed(inputs(3), bind=False).backward()
    with pytest.raises(
        ConfigError, match="`a` does not compute its attention by .* such as `flex_attention`"
    ):
        Attending(nn.Identity()).checkpointed(inputs(3), bind=False)


def test_what_nobody_bound_and_other_attention_are_refused(world):
    world(2).run(refusals)
