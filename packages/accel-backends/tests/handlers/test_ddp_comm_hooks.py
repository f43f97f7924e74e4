"""Gradients packed for the wire: the hooks that run on gloo, in two real processes."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from accel_backends import DistributedDataParallelKwargs
from accel_state.enums import DDPCommunicationHookType
from accel_state.errors import ConfigError

SIDE = 48
NUM_STEPS = 8


def body_trains(**options):
    """Train a matrix towards the same target on both ranks' data; return distance and last weights."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(SIDE, SIDE, bias=False))
    # Nearly of rank one, so that PowerSGD can follow, but not exactly, so that it can be distinguished.
    target = torch.randn(SIDE, 1) @ torch.randn(1, SIDE) + 0.05 * torch.randn(SIDE, SIDE)
    DistributedDataParallelKwargs(**options).register_comm_hook(model)
    model.module.weight.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=4.0)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(NUM_STEPS):
        rows = torch.randn(256, SIDE, generator=generator)
        loss = (model(rows) - rows @ target.T).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    distance = (model.module.weight.detach() - target).norm() / target.norm()
    return distance.item(), model.module.weight.detach().clone()


def run(world, **options):
    (distance, first), (_, second) = world(2).run(body_trains, **options)
    # Not bit for bit: each rank multiplies the factors itself, and the ring sums in another order on each.
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    return distance, first


def test_the_fp16_hook_averages_in_half_precision(world):
    _, plain = run(world)
    _, packed = run(world, comm_hook="fp16")
    assert not torch.equal(packed, plain)
    # fp16 keeps 11 bits of each gradient.
    torch.testing.assert_close(packed, plain, rtol=0, atol=plain.abs().max().item() * 2**-9)


@pytest.mark.parametrize("wrapper", ["no", "fp16"])
def test_power_sgd_compresses_and_still_gets_there(world, wrapper):
    plain_distance, plain = run(world)
    options = {"start_powerSGD_iter": 2, "matrix_approximation_rank": 2}
    distance, compressed = run(world, comm_hook="power_sgd", comm_wrapper=wrapper, comm_state_option=options)
    assert not torch.allclose(compressed, plain, rtol=0, atol=1e-4)
    assert distance < 2 * plain_distance + 0.05


def test_batched_power_sgd_is_refused_as_it_fails_in_torch():
    with pytest.raises(
        ConfigError, match="`comm_hook=batched_power_sgd` fails in torch.*`comm_hook=power_sgd`"
    ):
        DistributedDataParallelKwargs(comm_hook="batched_power_sgd")


def body_registers(**options):
    model = DistributedDataParallel(nn.Linear(2, 2))
    DistributedDataParallelKwargs(**options).register_comm_hook(model)
    return len(model._comm_hooks)


def body_registers_with_torch_for_cpus(**options):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.version, "cuda", None)
        patch.setattr(torch.version, "hip", None)
        return body_registers(**options)


@pytest.mark.parametrize(
    "options", [{"comm_hook": "bf16"}, {"comm_hook": "power_sgd", "comm_wrapper": "bf16"}]
)
def test_bf16_without_nccl_is_refused_with_a_hint(world, options):
    with pytest.raises(ConfigError, match="cannot be used here.*Choose fp16 or power_sgd"):
        world(2).run(body_registers_with_torch_for_cpus, **options)


def test_an_option_that_the_hooks_state_does_not_have_is_named(world):
    with pytest.raises(
        ConfigError, match=r"has no `start_iter`. Known to `power_sgd`: process_group, matrix_app"
    ):
        world(2).run(body_registers, comm_hook="power_sgd", comm_state_option={"start_iter": 3})


def test_no_hook_registers_nothing(world):
    assert world(2).run(body_registers) == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"comm_wrapper": "fp16"}, "wraps no hook"),
        ({"comm_hook": "fp16", "comm_wrapper": "power_sgd"}, "`comm_wrapper` must be one of no, fp16, bf16"),
        ({"comm_hook": "fp16", "comm_state_option": {"matrix_approximation_rank": 2}}, "has no effect"),
        ({"comm_hook": "fp8"}, "DDPCommunicationHookType"),
    ],
)
def test_choices_without_effect_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        DistributedDataParallelKwargs(**options)


def test_hooks_are_known_by_member_and_by_string():
    assert DistributedDataParallelKwargs(comm_hook="fp16").comm_hook is DDPCommunicationHookType.FP16
