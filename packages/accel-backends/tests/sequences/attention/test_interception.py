"""Whose sequences a module computes with, and what it refuses; the ranks are stood in for by torch's own attention."""

import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from accel_backends.sequences.attention.interception import InterceptedAttention
from accel_backends.sequences.cut import SequenceCut
from accel_backends.sequences.sharing import SequenceSharing
from accel_backends.sequences.tokens import SharedTokens
from accel_state.errors import ConfigError


class Attention(nn.Module):
    def forward(self, hidden):
        return scaled_dot_product_attention(hidden, hidden, hidden, is_causal=True)


class Caught:
    """An attention module over two ranks, and the sequences of each call that was caught."""

    def __init__(self, module):
        self.sharing = SequenceSharing(SequenceCut(2, 0), None, setting="cp_size")
        self.calls = []
        self.forward = InterceptedAttention(
            module.forward, name="a", sharing=self.sharing, attend=self.attend
        )

    def attend(self, query, key, value, call):
        self.calls.append((call.tokens.num_tokens, call.is_causal))
        return scaled_dot_product_attention(query, key, value)

    def checkpointed(self, length, *, bind=False):
        hidden = torch.randn(1, 1, length, 2, requires_grad=True)
        with self.sharing.using(
            SharedTokens(SequenceCut(2, 0), None, num_tokens=2 * length, num_real=2 * length)
        ):
            forward = self.sharing.bound(self.forward) if bind else self.forward
            return checkpoint(forward, hidden, use_reentrant=False).sum()


def test_a_second_run_computes_with_the_sequences_of_the_first():
    caught = Caught(Attention())
    caught.checkpointed(3).backward()
    caught.checkpointed(4).backward()
    assert caught.calls == [(6, True)] * 2 + [(8, True)] * 2
    first, second = caught.checkpointed(3, bind=True), caught.checkpointed(4, bind=True)
    (first + second).backward()
    assert sorted(caught.calls[4:]) == [(6, True)] * 2 + [(8, True)] * 2


def test_a_second_run_of_one_of_two_forward_passes_is_refused_where_nothing_reports_which():
    caught = Caught(Attention())
    losses = caught.checkpointed(3) + caught.checkpointed(4)
    with pytest.raises(ConfigError, match="`a` ran forward on two batches"):
        losses.backward()


def test_a_module_that_computes_attention_in_another_way_is_refused():
    caught = Caught(nn.Identity())
    with pytest.raises(
        ConfigError, match="`a` does not compute its attention by .* such as `flex_attention`"
    ):
        caught.checkpointed(3)
