from __future__ import annotations

import torch
from torch import nn

from accel_backends import resolve_plan
from accel_backends.estimates.communication import Collective, step_collectives
from accel_backends.estimates.forward_sizes import Message, StageSizes
from accel_backends.estimates.memory import plan_memory
from accel_state.mesh_layout import MeshLayout


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(6, 6)), nn.Sequential(nn.Linear(6, 6))])
        self.scale = nn.Parameter(torch.tensor(1.0))


def collectives(layout, model=None, **kwargs):
    model = Net() if model is None else model
    plan = resolve_plan(model, given={"units": ["blocks.*"], "tail": []})
    planned = plan_memory(model, plan, num_shards=layout.num_param_shards, num_replicas=layout.dp_replicate)
    return step_collectives(planned, layout, **kwargs)


def test_units_are_gathered_for_each_pass_and_reduced_once_with_parts_of_one_size():
    # Six rows on four ranks are two each and none for the last, which sends as many.
    shards = ("dp_shard",), 4, 4 * (2 * 6 + 2) * 4
    assert collectives(MeshLayout(dp_shard=4)) == {
        Collective("all_gather", *shards): 4,
        Collective("reduce_scatter", *shards): 2,
        # Whether ranks have used a parameter is a number: with the whole one's gradient, and of the four sharded ones.
        Collective("all_reduce", ("dp_shard",), 4, 4 + 4): 1,
        Collective("all_reduce", ("dp_shard",), 4, 4 * 4): 1,
    }


def test_without_resharding_units_are_gathered_once():
    counted = collectives(MeshLayout(dp_shard=4), reshards=False)
    assert [count for one, count in counted.items() if one.kind == "all_gather"] == [2]


def test_copies_reduce_the_shards():
    counted = collectives(MeshLayout(dp_replicate=3, dp_shard=4))
    assert counted[Collective("all_reduce", ("dp_replicate",), 3, (2 * 6 + 2) * 4)] == 2
    assert counted[Collective("all_reduce", ("dp_replicate",), 3, 4 + 4)] == 1


def test_in_lower_precision_units_are_gathered_in_it_and_reduced_in_fp32():
    counted = collectives(MeshLayout(dp_shard=4), element_bytes=2)
    assert {one.kind: one.num_bytes for one in counted if one.kind != "all_reduce"} == {
        "all_gather": 4 * 14 * 2,
        "reduce_scatter": 4 * 14 * 4,
    }


def test_what_is_not_trained_is_not_reduced():
    model = Net()
    model.requires_grad_(False)
    assert {one.kind for one in collectives(MeshLayout(dp_shard=4), model)} == {"all_gather"}


def test_one_rank_sends_nothing():
    assert not collectives(MeshLayout())


def test_layers_that_are_computed_again_send_again():
    sizes = StageSizes(messages=[Message("all_reduce", 8, is_repeated=True), Message("all_reduce", 8)])
    key = Collective("all_reduce", ("tp",), 2, 8)
    layout = MeshLayout(tp=2)
    assert collectives(layout, sizes=sizes)[key] == 2
    assert collectives(layout, sizes=sizes, is_checkpointed=True)[key] == 3
