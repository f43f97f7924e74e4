from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import resolve_plan
from accel_backends.estimates.forward_sizes import forward_sizes
from accel_state.errors import ConfigError
from accel_state.mesh_layout import MeshLayout
from tools.harness.models import StackedExperts

ROWS = 2 * 16  # tokens of a batch of two sequences


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, hidden):
        return hidden + self.down(torch.relu(self.up(hidden)))


class Net(nn.Module):
    parallel_plan = {
        "units": ["blocks.*"],
        "tensor": {
            "embed": "embedding_rowwise",
            "blocks.*.up": "colwise",
            "blocks.*.down": "rowwise",
            "head": "colwise_gather_output",
        },
    }

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(8, 10)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def sizes_of(model, **kwargs):
    return forward_sizes(model, resolve_plan(model), batch_size=2, sequence_length=16, **kwargs)


def measured(model):
    """Return the bytes that autograd keeps in a real pass."""
    held = {one.untyped_storage()._cdata for one in model.parameters()}
    kept = {}

    def keep(tensor):
        if tensor.untyped_storage()._cdata not in held:
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    tokens = torch.zeros(2, 16, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda packed: packed):
        nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    return sum(one.untyped_storage().nbytes() for one in kept.values())


def test_what_is_saved_is_what_autograd_keeps_in_a_real_pass():
    [sizes] = sizes_of(Net())
    assert sizes.saved == measured(Net())


def test_checkpointed_units_keep_their_inputs_and_one_is_computed_at_a_time():
    [sizes] = sizes_of(Net())
    hidden, inner = ROWS * 8 * 4, ROWS * 32 * 4
    per_block = hidden + inner  # the inputs of both layers; relu keeps what it returns
    assert sizes.saved - sizes.checkpointed == 3 * per_block - (3 * hidden + per_block)


def test_layers_that_are_shared_keep_their_part():
    whole, [shared] = sizes_of(Net()), sizes_of(Net(), layout=MeshLayout(tp=4))
    assert whole[0].saved - shared.saved == 3 * ROWS * (32 - 8) * 4


def test_shared_layers_send_what_their_styles_specify():
    [sizes] = sizes_of(Net(), layout=MeshLayout(tp=4))
    hidden = ROWS * 8 * 4
    assert sorted((one.kind, one.num_bytes) for one in sizes.messages) == [
        ("all_gather", ROWS * 12 * 4),  # ten outputs on four ranks: three each
        *[("all_reduce", hidden)] * 8,  # embedding, three of `down`, and in the backward pass `up` and `head`
    ]


def test_stages_get_what_the_one_before_hands_them():
    first, second = sizes_of(Net(), starts=["blocks.1"])
    [alone] = sizes_of(Net())
    assert second.received == ROWS * 8 * 4
    assert first.saved + second.saved == alone.saved


class Attending(nn.Module):
    parallel_plan = {"units": ["blocks.*"], "attention": ["blocks.*"]}

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 8)
        self.blocks = nn.ModuleList([nn.Linear(8, 16)])

    def forward(self, tokens):
        hidden = self.embed(tokens).unflatten(-1, (4, 2)).transpose(1, 2)
        key, value = self.blocks[0](hidden.transpose(1, 2).flatten(2)).chunk(2, -1)
        key, value = (one.unflatten(-1, (4, 2)).transpose(1, 2)[:, :2] for one in (key, value))
        mixed = nn.functional.scaled_dot_product_attention(hidden, key, value, enable_gqa=True)
        return mixed.transpose(1, 2).flatten(2)


HIDDEN = ROWS * 8 * 4  # bytes of the queries of one rank; keys and values are half as many


@pytest.mark.parametrize(
    ("layout", "has_ring", "messages"),
    [
        (MeshLayout(cp=4), False, [("all_gather", 4 * HIDDEN), ("reduce_scatter", 4 * HIDDEN)]),
        (MeshLayout(cp=4), True, [("all_gather", 4 * HIDDEN)] * 2 + [("reduce_scatter", 4 * HIDDEN)]),
        (MeshLayout(sp=2), False, [("all_to_all", HIDDEN)] * 2 + [("all_to_all", 2 * HIDDEN)] * 2),
        (MeshLayout(sp=4), False, [("all_to_all", HIDDEN)] * 2 + [("all_to_all", 3 * HIDDEN)] * 2),
    ],
)
def test_attention_over_shared_sequences_sends_keys_and_values_or_heads(layout, has_ring, messages):
    [sizes] = sizes_of(Attending(), layout=layout, has_ring=has_ring)
    assert sorted((one.kind, one.num_bytes) for one in sizes.messages) == messages
    assert {one.axes for one in sizes.messages} == {("sp",) if layout.sp > 1 else ("cp",)}


class Routed(nn.Module):
    parallel_plan = {"units": [], "experts": {"experts": "ep_dispatch_experts"}}

    def __init__(self, kind):
        super().__init__()
        self.embed, self.router = nn.Embedding(10, 8), nn.Linear(8, 4)
        self.experts = kind(4, 8, 5)

    def forward(self, tokens):
        hidden = self.embed(tokens).flatten(0, 1)
        weights, chosen = self.router(hidden).softmax(-1).topk(2)
        return hidden + self.experts(hidden, chosen, weights)


def test_experts_send_the_tokens_that_chose_them_and_get_their_forward_back():
    model = Routed(StackedExperts)
    [sizes] = sizes_of(model, layout=MeshLayout(dp_shard=2, ep=2))
    assert {(one.kind, one.axes) for one in sizes.messages} == {("all_to_all", ("ep",))}
    numbers = 4 * 8  # how many tokens go to each expert
    assert sorted(one.num_bytes for one in sizes.messages) == [numbers, *[2 * HIDDEN] * 4]
    assert "forward" not in vars(model.experts)


def test_the_model_stays_as_it_is():
    model = Net().eval()
    before = dict(model.named_parameters())
    sizes_of(model, layout=MeshLayout(tp=2))
    assert all(parameter is before[name] for name, parameter in model.named_parameters())
    assert not model.training
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_model_that_decides_by_values_is_refused():
    class Deciding(Net):
        def forward(self, tokens):
            return super().forward(tokens[tokens > 3] if tokens.sum() > 2 else tokens)

    with pytest.raises(ConfigError, match="Deciding decides by values .* Leave out `--sequence_length`"):
        sizes_of(Deciding())
