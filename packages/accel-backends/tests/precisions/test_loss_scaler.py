from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from accel_backends import AcceleratedOptimizer, LossScaler, get_grad_scaler
from accel_backends.precisions.loss_scaler import step_scaled, unscale_once
from accel_state import PartialState
from accel_state.errors import StateError


def pair():
    """Two weights with an optimizer each."""
    weights = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    return weights, [torch.optim.SGD([weight], lr=0.5) for weight in weights]


@pytest.fixture
def scaler():
    return LossScaler("cpu", init_scale=8.0)


def test_an_overflow_in_one_optimizer_does_not_change_how_another_is_unscaled(scaler):
    (first, second), (one, other) = pair()
    scaler.scale(first.sum() + second.sum()).backward()
    first.grad.fill_(torch.inf)
    assert step_scaled(scaler, one) is True
    assert step_scaled(scaler, other) is False
    assert second.item() == 0.5
    assert scaler.get_scale() == 4.0


def test_two_optimizers_that_step_once_each_count_as_one_good_step():
    scaler = LossScaler("cpu", init_scale=8.0, growth_interval=2)
    (first, second), (one, other) = pair()
    scales = []
    for _ in range(2):
        scaler.scale(first.sum() + second.sum()).backward()
        step_scaled(scaler, one)
        step_scaled(scaler, other)
        scales.append(scaler.get_scale())
    assert scales == [8.0, 16.0]


def test_alternating_optimizers_each_see_the_scale_of_their_own_loss():
    scaler = LossScaler("cpu", init_scale=8.0)
    (first, second), (one, other) = pair()
    scaler.scale(first.sum()).backward()
    first.grad.fill_(torch.nan)
    assert step_scaled(scaler, one) is True
    loss = scaler.scale(second.sum())
    assert loss.item() == 4.0
    loss.backward()
    assert step_scaled(scaler, other) is False
    assert second.item() == 0.5


def test_stepping_again_without_a_new_loss_updates_first(scaler):
    (first, _), (one, _) = pair()
    scaler.scale(first.sum()).backward()
    first.grad.fill_(torch.inf)
    assert step_scaled(scaler, one) is True
    first.grad.fill_(4.0)
    assert step_scaled(scaler, one) is False
    assert first.item() == 0.5


@pytest.mark.parametrize("looks", [LossScaler.get_scale, lambda scaler: scaler.state_dict()["scale"]])
def test_looking_shows_the_scale_after_all_steps(scaler, looks):
    (first, _), (one, _) = pair()
    scaler.scale(first.sum()).backward()
    first.grad.fill_(torch.inf)
    step_scaled(scaler, one)
    assert looks(scaler) == 4.0


@pytest.mark.parametrize(
    "looks",
    [LossScaler.get_scale, LossScaler.state_dict, copy.deepcopy, pickle.dumps],
    ids=lambda look: look.__name__,
)
def test_looking_between_the_steps_of_two_optimizers_changes_nothing(scaler, looks):
    """One rank may look, as when it saves, and the others not."""
    (first, second), (one, other) = pair()
    scaler.scale(first.sum() + second.sum()).backward()
    scaler.unscale_(other)
    first.grad.fill_(torch.inf)
    assert step_scaled(scaler, one) is True
    looks(scaler)
    assert step_scaled(scaler, other) is False
    assert second.item() == 0.5
    assert scaler.get_scale() == 4.0


def test_a_new_scale_takes_effect_at_once(scaler):
    (first, _), (one, _) = pair()
    scaler.scale(first.sum()).backward()
    step_scaled(scaler, one)
    scaler.update(2.0)
    assert scaler.get_scale() == 2.0


def test_a_loaded_state_is_not_changed_by_steps_before_it(scaler):
    (first, _), (one, _) = pair()
    state = scaler.state_dict()
    scaler.scale(first.sum()).backward()
    first.grad.fill_(torch.inf)
    step_scaled(scaler, one)
    scaler.load_state_dict(state)
    assert scaler.get_scale() == 8.0


@pytest.mark.parametrize("copied_by", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_it_can_be_copied_between_steps(scaler, copied_by):
    (first, _), (one, _) = pair()
    scaler.scale(first.sum()).backward()
    first.grad.fill_(torch.inf)
    step_scaled(scaler, one)
    assert copied_by(scaler).get_scale() == 4.0


def test_an_optimizer_without_gradients_steps_as_in_plain_torch(scaler):
    (first, _), (one, _) = pair()
    scaler.scale(first.sum())
    unscale_once(scaler, one)
    assert step_scaled(scaler, one) is False
    assert first.item() == 1.0


def test_a_plain_torch_scaler_works_too():
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    (first, _), (one, _) = pair()
    scaler.scale(first.sum()).backward()
    unscale_once(scaler, one)
    unscale_once(scaler, one)
    assert not step_scaled(scaler, one)
    assert first.item() == 0.5
    first.grad.fill_(torch.inf)
    assert step_scaled(scaler, one)
    assert scaler.get_scale() == 4.0


def test_a_fused_optimizer_reports_the_step_that_its_kernel_skipped(scaler):
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.AdamW([weight], lr=0.5, fused=True)
    scaler.scale(weight.sum()).backward()
    weight.grad.fill_(torch.inf)
    assert step_scaled(scaler, optimizer)
    assert weight.item() == 1.0
    weight.grad = None
    scaler.scale(weight.sum()).backward()
    assert not step_scaled(scaler, optimizer)
    assert weight.item() != 1.0


class Waits(TorchDispatchMode):
    """Counts how often a value is read from a tensor, for which the host waits on a device."""

    num_waits = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num_waits += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize("factor", [1.0, torch.inf])
def test_a_step_reads_no_more_than_torch_whether_gradients_overflowed(scaler, is_fused, factor):
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.5, fused=is_fused)
    scaler.scale(weight.sum() * factor).backward()
    with Waits() as waits:
        is_skipped = step_scaled(scaler, optimizer)
    assert waits.num_waits == (0 if is_fused else 1)
    assert bool(is_skipped) == (factor == torch.inf)
    assert weight.tolist() == ([1.0, 1.0] if is_skipped else [0.5, 0.5])


def test_an_overflow_of_one_fused_optimizer_is_not_reported_by_another(fresh_state, scaler):
    weights = [nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))]
    optimizers = [
        AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5, fused=True), scaler=scaler)
        for weight in weights
    ]
    scaler.scale(sum(weights).sum()).backward()
    weights[1].grad.fill_(torch.inf)
    for optimizer in optimizers:
        optimizer.step()
    scaler.scale(sum(weights).sum())
    assert [optimizer.step_was_skipped for optimizer in optimizers] == [False, True]


def test_a_closure_under_scaling_is_refused(scaler):
    _, (one, _) = pair()
    with pytest.raises(StateError, match="needs a closure.*bf16"):
        step_scaled(scaler, one, lambda: None)


def test_get_grad_scaler_is_for_the_device_of_this_process(fresh_state):
    PartialState(cpu=True)
    scaler = get_grad_scaler(init_scale=4.0)
    assert isinstance(scaler, torch.amp.GradScaler)
    assert scaler.scale(torch.ones(())).item() == 4.0


def test_get_grad_scaler_for_sharded_parameters_sees_all_shards(fresh_state, world):
    assert world(2).run(body_sharded_scaler) == ["ShardedGradScaler"] * 2


def body_sharded_scaler():
    return type(get_grad_scaler("FSDP")).__name__


def test_parameters_that_were_cast_to_fp16_are_an_error_that_gives_a_hint(scaler):
    (first, _), (one, _) = pair()
    first.data = first.data.half()
    scaler.scale(first.sum()).backward()
    with pytest.raises(StateError, match=r"fp16 parameters.*do not cast it after `prepare`"):
        step_scaled(scaler, one)
