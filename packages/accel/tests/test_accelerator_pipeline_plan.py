"""What `accel plan` reports of the ranks of a pipeline is what they hold and send."""

from collections import Counter
from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.functional import cross_entropy

from accel import Accelerator, ParallelismConfig
from accel_backends import FullyShardedDataParallelPlugin, resolve_plan
from accel_backends.estimates.estimate import Step, estimate
from accel_state import PipelineParallelConfig
from accel_state.mesh_layout import MeshLayout
from accel_state.runtime import reset_runtime
from accel.planning.collectives import counted_collectives

BATCH, TOKENS, PARTS = 4, 8, 4


class ScaledNorm(nn.LayerNorm):
    """A norm with a parameter of one value, which cannot be cut."""

    def __init__(self, width):
        super().__init__(width)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, hidden):
        return super().forward(hidden) * self.scale


class Net(nn.Module):
    """A tied model whose blocks run in another order than it lists its modules."""

    parallel_plan: ClassVar = {"units": ["blocks.*"], "tail": ["norm"]}

    def __init__(self):
        super().__init__()
        self.norm = ScaledNorm(10)
        self.embed = nn.Embedding(18, 10)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(10, 14), nn.Tanh(), nn.Linear(14, 10)) for _ in range(4)
        )
        self.head = nn.Linear(10, 18, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


def loss_of(model, tokens):
    return cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())


def counted_step(layout, schedule):
    """Return the parameters on this rank, and how often it does what in a step."""
    reset_runtime(keep_process_group=True)
    accelerator = Accelerator(
        cpu=True,
        parallelism_config=ParallelismConfig(
            **{f"{axis}_size": size for axis, size in layout.sizes.items()},
            pp_handler=PipelineParallelConfig(schedule, PARTS),
        ),
        fsdp_plugin=FullyShardedDataParallelPlugin(fsdp_version=2),
    )
    model = Net()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    tokens = torch.zeros(BATCH, TOKENS, dtype=torch.long)
    for _ in range(2):
        with counted_collectives() as counted:
            accelerator.forward_backward(model, tokens, loss_of)
        optimizer.step()
        optimizer.zero_grad()
    held = [one.to_local() if isinstance(one, DTensor) else one for one in model.parameters()]
    found = Counter()
    for (kind, ranks, size), count in counted.items():
        is_agreement = len(ranks) == layout.world_size and kind != "send"
        if kind != "receive" and not is_agreement:
            found[kind, size] += count
    return sum(one.untyped_storage().nbytes() for one in held), found


def planned_step(layout, schedule):
    model = Net()
    step = Step(batch_size=BATCH, sequence_length=TOKENS, num_micro_batches=PARTS, schedule=schedule)
    return estimate(model, resolve_plan(model), layout, step)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero_bubble"])
@pytest.mark.parametrize("sizes", [{"dp_shard": 2}, {"dp_replicate": 2}])
def test_ranks_of_a_pipeline_hold_and_send_what_the_plan_reports(world, sizes, schedule):
    layout = MeshLayout(pp=2, **sizes)
    stages = planned_step(layout, schedule)
    for rank, (held, counted) in enumerate(world(4).run(counted_step, layout, schedule)):
        stage = stages[rank // 2]
        assert held == pytest.approx(stage.memory["parameters"], abs=200)
        planned = Counter()
        for one, count in stage.collectives.items():
            planned[one.kind, one.num_bytes] += count
        assert counted == planned, (rank, layout)
