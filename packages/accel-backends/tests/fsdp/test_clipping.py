"""The norm of gradients on any meshes, and of plain ones next to them."""

import math

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from accel_backends.fsdp.clipping import clip_gradients, clip_values, total_norm
from accel_state.errors import ConfigError

CPU = torch.device("cpu")


def gradients_of(dtype=torch.float32):
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(shape, generator=generator, dtype=dtype) for shape in ((5, 3), (1,), (7,), (2, 2), ())
    ]


def norms_over_meshes(norm_type):
    line = init_device_mesh("cpu", (2,), mesh_dim_names=("a",))
    square = init_device_mesh("cpu", (2, 1), mesh_dim_names=("b", "c"))
    first, second, third, fourth, scalar = gradients_of()
    spread = [
        distribute_tensor(first, line, [Shard(0)]),
        distribute_tensor(second, line, [Shard(0)]),  # rank 1 has nothing of it
        distribute_tensor(third, square, [Replicate(), Shard(0)]),
        distribute_tensor(fourth, square, [Shard(1), Replicate()]),
        scalar,
    ]
    return total_norm(spread, norm_type, device=CPU)


@pytest.mark.parametrize("norm_type", [2, 1, 3.5, math.inf])
def test_the_norm_is_that_of_the_full_model_and_the_same_on_all_ranks(world, norm_type):
    whole = torch.cat([gradient.flatten() for gradient in gradients_of()])
    expected = torch.linalg.vector_norm(whole.double(), norm_type)
    first, second = world(2).run(norms_over_meshes, norm_type)
    assert type(first) is torch.Tensor
    assert torch.equal(first, second)
    torch.testing.assert_close(first.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_plain_gradients_are_clipped_as_torch_does(dtype):
    ours, theirs = ([nn.Parameter(torch.zeros_like(one)) for one in gradients_of(dtype)] for _ in range(2))
    for parameters in (ours, theirs):
        for parameter, gradient in zip(parameters, gradients_of(dtype), strict=True):
            parameter.grad = gradient
    norm = clip_gradients(ours, 0.5, 2, device=CPU)
    expected = torch.nn.utils.clip_grad_norm_(theirs, 0.5)
    tolerance = 1e-2 if dtype is torch.bfloat16 else 1e-6
    torch.testing.assert_close(norm.double(), expected.double(), rtol=tolerance, atol=0)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=tolerance, atol=1e-6)


def test_without_gradients_the_norm_is_zero_and_nothing_is_clipped():
    assert clip_gradients([nn.Parameter(torch.ones(2))], 1.0, 2, device=CPU) == 0.0


def test_a_norm_that_is_not_finite_is_reported():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([1.0, math.nan])
    assert clip_gradients([parameter], 1.0, 2, device=CPU).isnan()


def test_values_are_clamped():
    parameter = nn.Parameter(torch.ones(3))
    parameter.grad = torch.tensor([-3.0, 0.25, 2.0])
    clip_values([parameter, nn.Parameter(torch.ones(1))], 0.5)
    assert parameter.grad.tolist() == [-0.5, 0.25, 0.5]


def norm_of_unreduced():
    mesh = init_device_mesh("cpu", (2,))
    with pytest.raises(ConfigError, match="has not been reduced"):
        total_norm([DTensor.from_local(torch.ones(2), mesh, [Partial()])], 2, device=CPU)
    return True


def test_gradients_that_were_not_reduced_are_refused(world):
    assert all(world(2).run(norm_of_unreduced))


@pytest.mark.parametrize("norm_type", [0, -1, math.nan])
def test_an_exponent_that_makes_no_norm_is_refused(norm_type):
    with pytest.raises(ConfigError, match="`norm_type` must be above 0"):
        total_norm([torch.ones(1)], norm_type, device=CPU)
