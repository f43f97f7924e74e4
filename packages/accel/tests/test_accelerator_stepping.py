import json

import pytest
import torch
from torch import nn

from accel import Accelerator, FullyShardedDataParallelPlugin, GradScalerKwargs, ProfileKwargs
from accel_state import GradientAccumulationPlugin
from accel_state.errors import ConfigError
from tools.harness.models import make_batches, make_model

pytestmark = pytest.mark.usefixtures("fresh_state")


def one_step(accelerator, model, *, scale=1.0):
    accelerator.backward(model(torch.ones(2, 3)).sum() * scale)


def test_backward_divides_by_the_number_of_steps():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = accelerator.prepare(nn.Linear(3, 1, bias=False))
    one_step(accelerator, model)
    assert model.weight.grad.tolist() == [[0.5, 0.5, 0.5]]


def test_no_loss_is_an_error_that_names_where_losses_are_lost():
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(nn.Linear(3, 1))
    with pytest.raises(ConfigError, match="`backward` got None.*without `labels`.*`shift_labels`"):
        accelerator.backward(None)


def test_clipping_returns_the_norm_before_it():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(3, 1, bias=False))
    one_step(accelerator, model)
    assert accelerator.clip_grad_norm_(model.parameters(), 1.0).item() == pytest.approx(12**0.5)
    assert model.weight.grad.norm().item() == pytest.approx(1.0, rel=1e-5)


def test_clipping_by_value_clamps_every_gradient():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(3, 1, bias=False))
    one_step(accelerator, model)
    accelerator.clip_grad_value_(model.parameters(), 0.5)
    assert model.weight.grad.tolist() == [[0.5, 0.5, 0.5]]


def test_clipping_sees_unscaled_gradients_in_fp16_however_often_it_is_called():
    small = GradScalerKwargs(init_scale=256.0)
    accelerator = Accelerator(cpu=True, mixed_precision="fp16", kwargs_handlers=[small])
    model = nn.Linear(3, 1, bias=False)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    one_step(accelerator, model)
    norms = [accelerator.clip_grad_norm_(model.parameters(), 100.0).item() for _ in range(2)]
    assert norms == pytest.approx([12**0.5] * 2, rel=1e-3)


def test_an_overflow_in_fp16_skips_the_step_and_reports_it():
    accelerator = Accelerator(cpu=True, mixed_precision="fp16")
    model = nn.Linear(3, 1, bias=False)
    before = model.weight.detach().clone()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    one_step(accelerator, model, scale=float("inf"))
    optimizer.step()
    assert accelerator.optimizer_step_was_skipped
    assert torch.equal(model.weight, before)


def grads_under_no_sync():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, bias=False)
    model = accelerator.prepare(model)
    mine = torch.full((1, 1), float(accelerator.process_index + 1))
    with accelerator.no_sync(model):
        accelerator.backward(model(mine).sum())
    alone = accelerator.unwrap_model(model).weight.grad.item()
    accelerator.backward(model(mine).sum())
    return alone, accelerator.unwrap_model(model).weight.grad.item()


def test_no_sync_keeps_gradients_apart_until_the_next_backward(world):
    assert world(2).run(grads_under_no_sync) == [(1.0, 3.0), (2.0, 3.0)]


def synced_each_batch():
    plugin = GradientAccumulationPlugin(num_steps=2, sync_each_batch=True)
    accelerator = Accelerator(cpu=True, gradient_accumulation_plugin=plugin)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.full((1, 1), float(accelerator.process_index + 1))).sum())
        return accelerator.sync_gradients, accelerator.unwrap_model(model).weight.grad.item()


def test_sync_each_batch_averages_in_every_micro_batch(world):
    assert world(2).run(synced_each_batch) == [(False, 0.75), (False, 0.75)]


def test_a_block_that_raises_leaves_the_model_synchronising(world):
    assert world(2).run(raise_inside) == [1.5, 1.5]


def raise_inside():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    with pytest.raises(ValueError, match="mine"), accelerator.accumulate(model):
        raise ValueError("mine")
    accelerator.gradient_accumulation_steps = 1
    accelerator.backward(model(torch.full((1, 1), float(accelerator.process_index + 1))).sum())
    return accelerator.unwrap_model(model).weight.grad.item()


def test_autocast_runs_in_the_runs_precision():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    with accelerator.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16


def test_profile_leaves_a_trace_of_this_rank(tmp_path):
    handler = ProfileKwargs(activities=["cpu"], output_trace_dir=str(tmp_path))
    accelerator = Accelerator(cpu=True, kwargs_handlers=[handler])
    with accelerator.profile() as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)
    assert any("mm" in event.key for event in profiler.key_averages())
    trace = json.loads((tmp_path / "profile_0.json").read_text())
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])


class Fused(torch.optim.SGD):
    """Updates while gradients are computed, as LOMO does."""

    def fused_backward(self, loss, lr):
        loss.backward()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter -= lr * parameter.grad
                    parameter.grad = None


def fuse():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1, bias=False)
    nn.init.ones_(model.weight)
    model, _ = accelerator.prepare(model, Fused(model.parameters(), lr=0.0))
    accelerator.lomo_backward(model(torch.ones(1, 1)).sum(), learning_rate=0.25)
    return model.weight.item()


def test_a_fused_optimizer_updates_in_backward():
    assert fuse() == 0.75


def test_a_fused_optimizer_is_refused_on_several_processes(world):
    with pytest.raises(Exception, match="before their gradients are averaged"):
        world(2).run(fuse)


def test_lomo_needs_an_optimizer_that_can():
    accelerator = Accelerator(cpu=True)
    model = nn.Linear(1, 1)
    model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(ConfigError, match="found 0"):
        accelerator.lomo_backward(model(torch.ones(1, 1)).sum(), 0.1)


def synced_late(*, on_class):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(nn.Linear(1, 1, bias=False))
    mine = torch.full((1, 1), float(accelerator.process_index + 1))
    with accelerator.no_sync(model):
        loss = model(mine).sum()
    with (Accelerator if on_class else accelerator).trigger_sync_in_backward(model):
        accelerator.backward(loss)
    return accelerator.unwrap_model(model).weight.grad.item()


@pytest.mark.parametrize("on_class", [False, True])
def test_a_backward_may_synchronise_though_its_forward_did_not(world, on_class):
    assert world(2).run(synced_late, on_class=on_class) == [1.5, 1.5]


def clipped_in_parts(precision, *, is_guarded, by_value=False):
    """Weights after a step on two micro-batches, clipped in each or only where the sum is complete."""
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        gradient_accumulation_steps=2,
        kwargs_handlers=[GradScalerKwargs(init_scale=256.0)] if precision == "fp16" else None,
    )
    model = nn.Linear(3, 1, bias=False)
    nn.init.ones_(model.weight)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    norms = []
    for step in range(2):
        with accelerator.accumulate(model):
            one_step(accelerator, model, scale=step + 1)
            if accelerator.sync_gradients or not is_guarded:
                if by_value:
                    accelerator.clip_grad_value_(model.parameters(), 0.5)
                else:
                    norms.append(accelerator.clip_grad_norm_(model.parameters(), 0.5).item())
            optimizer.step()
            optimizer.zero_grad()
    return model.weight.flatten().tolist(), norms


@pytest.mark.parametrize("by_value", [False, True])
@pytest.mark.parametrize("precision", ["no", "fp16"])
def test_clipping_waits_until_the_sum_is_complete(precision, by_value):
    weights, norms = clipped_in_parts(precision, is_guarded=False, by_value=by_value)
    assert weights == clipped_in_parts(precision, is_guarded=True, by_value=by_value)[0]
    if not by_value:
        assert norms == pytest.approx([3**0.5, 27**0.5], rel=1e-3)


WINDOW = 2
"""Micro-batches of a window."""


def train_two_models(fsdp_version=None):
    """Two models, each with its optimizer, trained by one loss in windows, and clipped by value."""
    plugin = None if fsdp_version is None else FullyShardedDataParallelPlugin(fsdp_version=fsdp_version)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=WINDOW, fsdp_plugin=plugin)
    models = [make_model("odd", seed=seed) for seed in (0, 1)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    first, second, *optimizers = accelerator.prepare(*models, *optimizers)
    for rows in make_batches(4 * WINDOW)[accelerator.process_index :: accelerator.num_processes]:
        with accelerator.accumulate(first, second):
            accelerator.backward((first(rows) - second(rows)).square().mean())
            for model, optimizer in zip((first, second), optimizers, strict=True):
                accelerator.clip_grad_value_(model.parameters(), 0.002)
                optimizer.step()
                optimizer.zero_grad()
    return [accelerator.get_state_dict(model) for model in (first, second)]


def train_two_models_by_hand(num_ranks):
    models = [make_model("odd", seed=seed) for seed in (0, 1)]
    batches = make_batches(4 * WINDOW)
    for start in range(0, len(batches), WINDOW * num_ranks):
        for rows in batches[start : start + WINDOW * num_ranks]:
            loss = (models[0](rows) - models[1](rows)).square().mean()
            (loss / (WINDOW * num_ranks)).backward()
        for model in models:
            torch.nn.utils.clip_grad_value_(model.parameters(), 0.002)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            model.zero_grad()
    return [model.state_dict() for model in models]


@pytest.mark.parametrize(
    ("num_ranks", "fsdp_version"),
    [(1, None), (2, None), (2, 2)],
    ids=["single", "ddp", "fsdp2"],
)
def test_several_models_accumulate_together_and_are_clipped_by_value(world, num_ranks, fsdp_version):
    found = world(num_ranks).run(train_two_models, fsdp_version)[0]
    start = [make_model("odd", seed=seed).state_dict() for seed in (0, 1)]
    for state, expected, before in zip(found, train_two_models_by_hand(num_ranks), start, strict=True):
        for name, value in expected.items():
            torch.testing.assert_close(state[name], value, rtol=1e-5, atol=1e-7, msg=name)
        assert not all(state[name].equal(value) for name, value in before.items())


class FusedSGD(torch.optim.Optimizer):
    """Steps in the backward pass, by the protocol of LOMO."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def fused_backward(self, loss, lr):
        loss.backward()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data -= lr * parameter.grad
                parameter.grad = None

    def step(self, closure=None):
        raise NotImplementedError


def test_an_optimizer_that_steps_in_the_backward_pass_gets_the_learning_rate():
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Linear(2, 1, bias=False)
    before = model.weight.detach().clone()
    model, optimizer = accelerator.prepare(model, FusedSGD(model.parameters()))
    accelerator.backward(model(torch.ones(1, 2)).sum(), learning_rate=0.5)
    optimizer.step()
    optimizer.zero_grad()
    assert torch.equal(model.weight, before - 0.5)


def test_a_learning_rate_for_no_optimizer_is_an_error():
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(torch.nn.Linear(2, 1))
    with pytest.raises(
        ConfigError, match="`backward` got a `learning_rate`, which is for optimizers that step"
    ):
        accelerator.backward(model(torch.ones(1, 2)).sum(), learning_rate=0.5)
