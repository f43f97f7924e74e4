"""What a step of a sharded model holds, beside what `accel plan` tells of it."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from accel import Accelerator, FullyShardedDataParallelPlugin
from accel_backends import resolve_plan
from accel_backends.plans.estimate import Step, estimate
from accel_state.mesh_layout import MeshLayout


class Wide(nn.Module):
    """A model of 28 MB, of which two blocks make most."""

    parallel_plan: ClassVar = {"units": ["embed", "blocks.*"], "tail": ["norm", "head"]}

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 512)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(3)
        )
        self.norm = nn.LayerNorm(512)
        self.head = nn.Linear(512, 1000, bias=False)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


def measured_step():
    """Return the bytes that this rank holds in a step, by what they are for, and those that `accel plan` tells."""
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = Wide()
    plan = resolve_plan(model)
    [expected] = estimate(model, plan, MeshLayout(dp_shard=2), Step(batch_size=4, sequence_length=64))
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    groups = [
        one._get_fsdp_state()._fsdp_param_group for one in model.modules() if isinstance(one, FSDPModule)
    ]
    groups = [group for group in groups if group is not None]
    peaks, kept = [], {}

    def gathered():
        held = [
            out
            for group in groups
            for one in group.fsdp_params
            for out in getattr(one, "all_gather_outputs", ())
        ]
        ahead = [group._all_gather_result.all_gather_output for group in groups if group._all_gather_result]
        return {one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in [*held, *ahead]}

    def keep(tensor):
        if tensor.untyped_storage()._cdata not in gathered():
            kept[tensor.untyped_storage()._cdata] = tensor
        return tensor

    for module in model.modules():
        module.register_forward_pre_hook(lambda *_: peaks.append(sum(gathered().values())))
        module.register_full_backward_hook(lambda *_: peaks.append(sum(gathered().values())))
    tokens = torch.zeros(4, 64, dtype=torch.long)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda packed: packed):
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
    accelerator.backward(loss)
    optimizer.step()
    states = [one for state in optimizer.optimizer.state.values() for one in state.values() if one.dim()]
    return expected.memory, {
        "parameters": bytes_of(model.parameters()),
        "gradients": bytes_of(one.grad for one in model.parameters()),
        "optimizer states (AdamW)": bytes_of(states),
        "buffers": 0,
        "gathered units": max(peaks),
        "activations": bytes_of(kept.values()),
    }


def bytes_of(tensors):
    locals_ = [one.to_local() if isinstance(one, DTensor) else one for one in tensors]
    return sum({one.untyped_storage()._cdata: one.untyped_storage().nbytes() for one in locals_}.values())


def test_a_step_holds_what_the_plan_tells(world):
    for expected, found in world(2).run(measured_step):
        assert found == pytest.approx(expected, rel=0.1)
