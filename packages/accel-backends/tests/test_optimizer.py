from __future__ import annotations

import copy
import gc
import pickle
import tracemalloc

import pytest
import torch
from torch import nn

from accel_backends import AcceleratedOptimizer, LossScaler
from accel_backends.optimizer import in_memory
from accel_state.errors import StateError
from accel_state.gradient_state import current_gradient

pytestmark = pytest.mark.usefixtures("fresh_state")


class Loader:
    """What the gradient state knows of a loader."""

    end_of_dataloader = False
    remainder = -1


@pytest.fixture
def weight():
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.ones(2)
    return parameter


@pytest.fixture
def optimizer(weight):
    return AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5, momentum=0.9))


def test_it_is_a_torch_optimizer(optimizer):
    assert isinstance(optimizer, torch.optim.Optimizer)


def test_it_steps_and_clears_when_gradients_are_complete(optimizer, weight):
    optimizer.step()
    optimizer.zero_grad()
    assert weight.tolist() == [0.5, 0.5]
    assert weight.grad is None


def test_it_does_nothing_while_gradients_accumulate(optimizer, weight):
    current_gradient()._set_sync_gradients(False)
    assert optimizer.step(lambda: pytest.fail("the closure must not run")) is None
    optimizer.zero_grad()
    assert weight.tolist() == [1.0, 1.0]
    assert weight.grad.tolist() == [1.0, 1.0]


def test_zero_grad_passes_its_argument_on(optimizer, weight):
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad.tolist() == [0.0, 0.0]


def test_a_closure_is_run_and_its_loss_returned(weight):
    optimizer = AcceleratedOptimizer(torch.optim.LBFGS([weight], lr=0.1, max_iter=5))
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = (weight - 3).square().sum()
        loss.backward()
        calls.append(loss.item())
        return loss

    assert optimizer.step(closure).item() == 8.0
    assert len(calls) > 1
    assert (weight - 3).abs().max() < 2


def test_a_closure_under_a_scaler_is_refused(weight):
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5), scaler=LossScaler("cpu"))
    with pytest.raises(StateError, match="closure"):
        optimizer.step(lambda: None)


def test_an_overflow_is_reported_until_a_step_succeeds(weight):
    scaler = LossScaler("cpu", init_scale=2.0)
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5), scaler=scaler)
    skipped = [optimizer.step_was_skipped]
    for gradient in (torch.inf, 1.0):
        weight.grad = None
        scaler.scale(weight.sum()).backward()
        weight.grad.mul_(gradient)
        optimizer.step()
        skipped.append(optimizer.step_was_skipped)
    assert skipped == [False, True, False]
    assert weight.tolist() == [0.5, 0.5]


def test_accumulating_does_not_change_what_is_reported_about_the_last_step(weight):
    scaler = LossScaler("cpu", init_scale=2.0)
    optimizer = AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5), scaler=scaler)
    scaler.scale(weight.sum())
    weight.grad.fill_(torch.inf)
    optimizer.step()
    current_gradient()._set_sync_gradients(False)
    optimizer.step()
    assert optimizer.step_was_skipped


def test_groups_state_and_defaults_are_those_of_the_wrapped_optimizer(optimizer, weight):
    inner = optimizer.optimizer
    optimizer.param_groups[0]["lr"] = 0.25
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(1))], "lr": 7.0})
    assert [group["lr"] for group in inner.param_groups] == [0.25, 7.0]
    assert optimizer.defaults is inner.defaults
    optimizer.step()
    assert optimizer.state is inner.state
    assert "momentum_buffer" in optimizer.state[weight]
    optimizer.param_groups = inner.param_groups[:1]
    optimizer.state = inner.state
    optimizer.defaults = {"lr": 1.0}
    assert (len(inner.param_groups), inner.defaults) == (1, {"lr": 1.0})


def test_hooks_run_at_real_steps_only(optimizer):
    steps = []
    optimizer.register_step_post_hook(lambda *_: steps.append("step"))
    current_gradient()._set_sync_gradients(False)
    optimizer.step()
    current_gradient()._set_sync_gradients(True)
    optimizer.step()
    assert steps == ["step"]


def test_state_dict_goes_out_and_in(optimizer, weight):
    optimizer.step()
    other_weight = nn.Parameter(torch.ones(2))
    other = AcceleratedOptimizer(torch.optim.SGD([other_weight], lr=0.1, momentum=0.9))
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["lr"] == 0.5
    assert other.state[other_weight]["momentum_buffer"].tolist() == [1.0, 1.0]


def test_schedulers_take_it_for_an_optimizer(optimizer):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.optimizer.param_groups[0]["lr"] == 0.25


class ScheduleFree(torch.optim.SGD):
    mode = "train"

    def train(self):
        self.mode = "train"

    def eval(self):
        self.mode = "eval"


def test_modes_reach_an_optimizer_that_has_them(weight):
    optimizer = AcceleratedOptimizer(ScheduleFree([weight], lr=0.1))
    optimizer.eval()
    assert optimizer.mode == "eval"
    optimizer.train()
    assert optimizer.mode == "train"


def test_modes_are_nothing_to_an_optimizer_without(optimizer):
    optimizer.eval()
    optimizer.train()
    with pytest.raises(AttributeError, match="mode"):
        _ = optimizer.mode


class StepWithoutClosure(torch.optim.SGD):
    def step(self):
        return super().step()


def test_an_optimizer_whose_step_takes_no_closure_works(weight):
    AcceleratedOptimizer(StepWithoutClosure([weight], lr=0.5)).step()
    assert weight.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    "copied_by", [copy.deepcopy, lambda optimizer: pickle.loads(pickle.dumps(optimizer))]
)
def test_copies_obey_the_gradient_state_of_the_process(optimizer, copied_by):
    optimizer.step()
    loader = Loader()
    current_gradient()._add_dataloader(loader)  # held weakly, which cannot be pickled
    copied = copied_by(optimizer)
    parameter = copied.param_groups[0]["params"][0]
    parameter.grad = torch.ones(2)
    current_gradient()._set_sync_gradients(False)
    copied.step()
    assert parameter.tolist() == [0.5, 0.5]
    current_gradient()._set_sync_gradients(True)
    copied.step()
    assert parameter.tolist()[0] < 0.5


def test_repr_shows_the_wrapped_optimizer(optimizer):
    assert repr(optimizer).startswith("AcceleratedOptimizer(SGD (")


class Silent(torch.optim.Optimizer):
    """An optimizer that does nothing, so that what remains is the wrapper's."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self, closure=None):
        return None

    def zero_grad(self, set_to_none=True):
        return None


def test_stepping_keeps_no_memory(weight):
    optimizer = AcceleratedOptimizer(Silent([weight]))
    optimizer.step()
    optimizer.zero_grad()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    for _ in range(1000):
        optimizer.step()
        optimizer.zero_grad()
    after = tracemalloc.take_snapshot()
    tracemalloc.stop()
    ours = [stat for stat in after.compare_to(before, "filename") if "accel_backends" in str(stat.traceback)]
    assert sum(stat.size_diff for stat in ours) < 1000


def stepped_adamw():
    weight = torch.nn.Parameter(torch.ones(2, 3))
    optimizer = torch.optim.AdamW([weight], lr=0.1)
    weight.grad = torch.full_like(weight, 2)
    optimizer.step()
    return weight, optimizer


def test_a_loaded_state_goes_into_the_memory_that_the_optimizer_has():
    (weight, optimizer), (_, saved) = stepped_adamw(), stepped_adamw()
    content = saved.state_dict()
    content["state"][0]["exp_avg"].fill_(7)
    moments = optimizer.state[weight]["exp_avg"]
    loaded = in_memory(optimizer, content)
    assert loaded["state"][0]["exp_avg"] is moments
    assert bool((moments == 7).all())


def test_a_loaded_state_shares_no_memory_with_what_was_read():
    _, saved = stepped_adamw()
    content = saved.state_dict()
    content["param_groups"][0]["lr"] = rate = torch.tensor(0.5)
    content["state"][0]["history"] = [kept := torch.ones(3)]
    loaded = in_memory(torch.optim.AdamW([torch.nn.Parameter(torch.ones(2, 3))]), content)
    assert loaded["state"][0]["history"][0].equal(kept)
    assert loaded["param_groups"][0]["lr"].equal(rate)
    tensors = [*content["state"][0].values(), rate, kept]
    before = {one.untyped_storage().data_ptr() for one in tensors if isinstance(one, torch.Tensor)}
    after = [*loaded["state"][0].values(), loaded["param_groups"][0]["lr"], *loaded["state"][0]["history"]]
    assert not before & {one.untyped_storage().data_ptr() for one in after if isinstance(one, torch.Tensor)}
