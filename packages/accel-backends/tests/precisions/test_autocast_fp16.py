from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import AcceleratedOptimizer, GradScalerKwargs, collect, select_precision
from accel_backends.precisions.loss_scaler import step_scaled
from accel_state.devices import device_backend

CPU = device_backend("cpu")


def fp16(**options):
    return select_precision("fp16", device_backend=CPU, handlers=collect([GradScalerKwargs(**options)]))


@pytest.fixture
def weight():
    return nn.Parameter(torch.ones(2))


def test_the_handler_sets_up_the_scaler():
    precision = fp16(init_scale=8.0, growth_interval=1)
    assert precision.scaler.get_scale() == 8.0
    assert precision.scaler.get_growth_interval() == 1


def test_gradients_have_their_true_size_when_the_optimizer_steps(weight):
    precision = fp16(init_scale=8.0)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    precision.scale(weight.sum()).backward()
    assert weight.grad.tolist() == [8.0, 8.0]
    assert not step_scaled(precision.scaler, optimizer)
    assert weight.tolist() == [0.5, 0.5]


def test_unscaling_happens_once_however_often_it_is_requested(weight):
    precision = fp16(init_scale=8.0)
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5), scaler=precision.scaler)
    for _ in range(2):
        weight.grad = None
        precision.scale(weight.sum()).backward()
        for _ in range(3):
            precision.unscale(optimizer)
        assert weight.grad.tolist() == [1.0, 1.0]
        optimizer.step()
    assert weight.tolist() == [0.0, 0.0]


def test_unscaling_before_there_are_gradients_does_not_count(weight):
    precision = fp16(init_scale=8.0)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    precision.unscale(optimizer)
    assert not step_scaled(precision.scaler, optimizer)
    precision.scale(weight.sum()).backward()
    precision.unscale(optimizer)
    assert weight.grad.tolist() == [1.0, 1.0]


def test_a_disabled_scaler_leaves_everything_unchanged(weight):
    precision = fp16(enabled=False)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    precision.scale(weight.sum()).backward()
    precision.unscale(optimizer)
    assert not step_scaled(precision.scaler, optimizer)
    assert weight.tolist() == [0.5, 0.5]


def test_state_travels(weight):
    precision, other = fp16(init_scale=8.0), fp16()
    weight.grad = torch.full((2,), torch.inf)
    precision.scale(weight.sum())
    step_scaled(precision.scaler, torch.optim.SGD([weight], lr=0.5))
    other.load_state_dict(precision.state_dict())
    assert other.scaler.get_scale() == 4.0


def test_an_engine_that_scales_losses_leaves_nothing_to_do(weight):
    precision = fp16(init_scale=8.0)
    precision.leave_scaling_to_engine()
    assert precision.scale(torch.tensor(3.0)) == 3.0
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    precision.unscale(optimizer)
    assert weight.grad.tolist() == [1.0, 1.0]
