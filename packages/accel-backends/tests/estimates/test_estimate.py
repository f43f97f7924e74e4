from __future__ import annotations

import torch
from torch import nn

from accel_backends import resolve_plan
from accel_backends.estimates.communication import Collective
from accel_backends.estimates.estimate import Step, estimate
from accel_backends.estimates.fitting import proposals
from accel_state.mesh_layout import MeshLayout


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 8)) for _ in range(4)
        )
        self.head = nn.Linear(8, 16)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(hidden)


def estimated(layout, **step):
    model = Net()
    return estimate(model, resolve_plan(model), layout, Step(**step))


def test_every_part_of_the_memory_has_a_name():
    [alone] = estimated(MeshLayout())
    size = 4 * sum(parameter.numel() for parameter in Net().parameters())
    assert alone.memory == {
        "parameters": size, "gradients": size, "optimizer states (AdamW)": 2 * size, "buffers": 0,
        "gathered units": 0,
    }  # fmt: skip
    assert alone.total == 4 * size


def test_units_are_gathered_in_the_type_that_ranks_compute_in():
    [full], [half] = (
        estimated(MeshLayout(dp_shard=2)),
        estimated(MeshLayout(dp_shard=2), dtype=torch.bfloat16),
    )
    assert full.memory["gathered units"] == 2 * half.memory["gathered units"]


def test_stages_have_the_parameters_of_the_model_between_them():
    stages = estimated(MeshLayout(pp=2), batch_size=2, sequence_length=8)
    [alone] = estimated(MeshLayout())
    assert sum(stage.memory["parameters"] for stage in stages) == alone.memory["parameters"]
    sends = [stage.collectives[Collective("send", ("pp",), 2, 8 * 8 * 4)] for stage in stages]
    assert sends == [2, 2]  # two micro-batches; the gradients go back


def test_sequence_parallel_ranks_hold_their_part_of_the_activations():
    whole, part = (
        estimated(layout, sequence_length=64)[0].memory["activations"]
        for layout in (MeshLayout(dp_shard=2), MeshLayout(cp=2))
    )
    assert whole == 2 * part - 4  # the loss keeps the sum of its weights


def test_proposals_are_what_is_estimated():
    model = Net()
    found, _ = proposals(model, resolve_plan(model), num_ranks=4, step=Step())
    assert {tuple(one.layout.sizes.values()) for one in found} == {
        (1, copies, 4 // copies, 1, 1, 1) for copies in (1, 2, 4)
    }
    [needed] = estimated(MeshLayout(dp_shard=4))
    [sharded] = [one for one in found if one.layout.dp_shard == 4]
    assert sharded.num_bytes == needed.total
    assert sharded.sent_per_sequence == needed.bytes_sent
