from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from accel_backends import resolve_plan
from accel_backends.estimates.memory import Bytes, plan_memory


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(33, 33)
        self.scale = nn.Parameter(torch.tensor(1.0))


class Net(nn.Module):
    def __init__(self, *, is_tied=False):
        super().__init__()
        self.embed = nn.Embedding(50, 33)
        self.stem = nn.Linear(33, 33, bias=False)
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.norm = nn.LayerNorm(33)
        self.head = nn.Linear(33, 50, bias=False)
        self.register_buffer("mask", torch.zeros(7))
        if is_tied:
            self.head.weight = self.embed.weight


def planned(model=None, **kwargs):
    model = Net() if model is None else model
    return plan_memory(model, resolve_plan(model), **kwargs)


def test_units_come_in_the_order_of_the_model_with_tail_and_root_last():
    units = planned(num_shards=2).units
    assert [unit.modules for unit in units] == [
        ("embed",), ("blocks.0",), ("blocks.1",), ("blocks.2",), ("norm", "head"), ("",),
    ]  # fmt: skip
    assert [unit.is_tail for unit in units] == [False] * 4 + [True, False]
    assert [parameter.name for parameter in units[-1].parameters] == ["stem.weight"]


def test_every_parameter_is_in_one_unit():
    model = Net()
    names = [parameter.name for unit in planned(model, num_shards=2).units for parameter in unit.parameters]
    assert sorted(names) == sorted(name for name, _ in model.named_parameters())


def test_modules_that_share_a_weight_are_one_unit_and_the_weight_counts_once():
    model = Net(is_tied=True)
    units = planned(model, num_shards=1).units
    assert [unit.modules for unit in units if unit.is_tail] == [("embed", "norm", "head")]
    total = sum(unit.whole.parameters for unit in units)
    assert total == sum(4 * parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8, 40, 64])
def test_shards_are_the_chunks_of_torch(num_shards):
    for unit in planned(num_shards=num_shards).units:
        for parameter in unit.parameters:
            if parameter.shape == ():
                continue
            chunks = torch.empty(parameter.shape, device="meta").chunk(num_shards)
            expected = [tuple(chunk.shape) for chunk in chunks]
            expected += [(0, *parameter.shape[1:])] * (num_shards - len(chunks))
            assert [parameter.shard_shape(shard) for shard in range(num_shards)] == expected


def shards_of_rank():
    model = Net()
    plan = resolve_plan(model)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    whole = {parameter for parameter in model.parameters() if parameter.dim() == 0}
    for name in plan.units:
        fully_shard(model.get_submodule(name), mesh=mesh, ignored_params=whole)
    fully_shard(model, mesh=mesh, ignored_params=whole)
    return {
        name: tuple(parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape)
        for name, parameter in model.named_parameters()
    }


def test_shards_are_those_of_a_sharded_model(world):
    parameters = [found for unit in planned(num_shards=2).units for found in unit.parameters]
    for rank, shapes in enumerate(world(2).run(shards_of_rank)):
        assert {found.name: found.shard_shape(rank) for found in parameters} == shapes


def test_scalars_are_on_every_rank():
    scales = [
        parameter
        for unit in planned(num_shards=4).units
        for parameter in unit.parameters
        if parameter.name.endswith("scale")
    ]
    assert [scale.bytes_on(3) for scale in scales] == [Bytes(4, 4, 8)] * 3


def test_the_first_rank_holds_most_and_all_ranks_together_everything():
    model = planned(num_shards=4)
    ranks = [model.bytes_on(shard).total for shard in range(4)]
    assert ranks == sorted(ranks, reverse=True)
    on_others = 3 * 3 * 16  # the scalars of three blocks, on three more ranks
    assert sum(ranks) == model.whole.total + on_others


def test_trained_parameters_are_kept_in_fp32_with_gradient_and_moments():
    model = Net().to(torch.bfloat16)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert planned(model, num_shards=1).bytes_on(0) == Bytes(4 * count, 4 * count, 8 * count)


def test_frozen_parameters_keep_their_dtype_and_have_neither():
    model = Net().to(torch.bfloat16).requires_grad_(False)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert planned(model, num_shards=1).bytes_on(0) == Bytes(2 * count, 0, 0)


def test_buffers_are_counted_too():
    assert planned(num_shards=8).buffer_bytes == 28


def test_gathered_at_a_time_are_the_root_and_two_units_in_a_row_of_which_the_tail_is_the_last():
    model = planned(num_shards=4)
    embed, block, *_, tail, root = (unit.whole.parameters for unit in model.units)
    assert model.gathered_bytes == root + block + tail
    without_tail = replace(model, units=tuple(unit for unit in model.units if not unit.is_tail))
    assert without_tail.gathered_bytes == root + embed + block


def test_a_model_without_units_is_gathered_in_full():
    model = nn.Linear(3, 3)
    assert planned(model, num_shards=2).gathered_bytes == 4 * 12


def test_nothing_is_computed_on_a_device():
    with torch.device("meta"):
        model = Net()
    assert planned(model, num_shards=2).units == planned(num_shards=2).units
