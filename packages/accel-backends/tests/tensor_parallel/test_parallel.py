"""What is sharded, and what is refused; that it trains right is tested with the Accelerator."""

import random

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from accel_backends.plans.plan import ParallelPlan
from accel_backends.tensor_parallel.parallel import TensorParallel, share_random_state
from accel_ops.named_tensors import named_tensors
from accel_state.errors import ConfigError
from tools.harness.models import Shared, make_model


def refusals():
    mesh = init_device_mesh("cpu", (2,))
    tied, found = make_model("shared-tied"), []
    scaled = make_model("buffered")
    for model, tensor in [
        (tied, {}),
        (tied, {"head": "mla_kv_a_proj"}),
        (scaled, {"scale": "colwise"}),
        (tied, {"embed": "embedding_colwise", "head": "colwise_gather_output"}),
        (tied, {"embed": "embedding_rowwise_sequence", "head": "colwise_gather_output_sequence"}),
    ]:
        with pytest.raises(ConfigError) as caught:
            TensorParallel(model, ParallelPlan(tensor=tensor), mesh)
        found.append(str(caught.value))
    assert not any(isinstance(parameter, DTensor) for parameter in tied.parameters())
    return found


def test_a_plan_that_cannot_be_followed_is_refused_before_anything_is_sharded(world):
    for found in world(2).run(refusals):
        nothing, unknown, parameter, two, idle = found
        assert "The Shared has no plan by which 2 ranks (`tp_size`) could share its layers" in nothing
        assert (
            "`head` has the style `mla_kv_a_proj`, by which `prepare` cannot shard it. It knows: colwise,"
            in unknown
        )
        assert "`scale` is a parameter of the Buffered" in parameter
        assert "`embed.weight` and `head.weight` are one tensor, but the plan cuts it along two" in two
        assert "every layer needs a style in `tensor`. Without one are: `blocks.0.norm.weight`" in idle


def cut():
    model = Shared(is_tied=True)
    model.embed.requires_grad_(False)
    model.norm.requires_grad_(False)
    plan = ParallelPlan(tensor={"head": "colwise_gather_output", "norm": "replicated_with_grad_allreduce"})
    TensorParallel(model, plan, init_device_mesh("cpu", (2,))).cut(
        named_tensors(model, include_buffers=False)
    )
    assert not model.norm.weight.requires_grad
    return model.head.weight is model.embed.weight, model.embed.weight.requires_grad, _sizes(model)


def _sizes(model: nn.Module):
    return {
        name: tuple(one.to_local().shape)
        for name, one in model.named_parameters()
        if isinstance(one, DTensor)
    }


NORM = {"norm.weight": (12,), "norm.bias": (12,)}


def test_layers_that_share_a_weight_are_sharded_alike_and_share_it_still(world):
    assert world(2).run(cut) == [
        (True, False, {"embed.weight": (10, 12)} | NORM),
        (True, False, {"embed.weight": (9, 12)} | NORM),
    ]


def draws():
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)
    random.seed(rank)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp_shard", "tp"))
    share_random_state(mesh["tp"], torch.device("cpu"))
    return torch.rand(3).tolist(), random.random()


def test_tp_ranks_draw_the_same_random_numbers(world):
    first, second, third, fourth = world(4).run(draws)
    assert first == second
    assert third == fourth
    assert first != third
