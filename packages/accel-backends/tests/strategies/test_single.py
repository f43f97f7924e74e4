from __future__ import annotations

import pytest
import torch
from torch import nn

from accel_backends import (
    AcceleratedOptimizer,
    AcceleratedScheduler,
    Bundle,
    Capabilities,
    GradScalerKwargs,
    Placement,
    SchedulerSettings,
    StrategyContext,
    Sync,
    TorchDynamoPlugin,
    collect,
    full_model_state,
    select_precision,
    select_strategy,
    trigger_sync_in_backward,
)
from accel_backends.compile import is_compiled
from accel_state import PartialState
from accel_state.runtime import current_runtime


@pytest.fixture
def runtime(fresh_state):
    PartialState(cpu=True)
    return current_runtime()


def strategy_for(runtime, precision="no", handlers=(), **context):
    found = collect(handlers)
    chosen = select_precision(precision, device_backend=runtime.device_backend, handlers=found)
    strategy = select_strategy(topology=runtime.topology)
    strategy.setup(StrategyContext(runtime, chosen, handlers=found, **context))
    return strategy


def parts():
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def test_everything_comes_back_prepared_in_its_order(runtime):
    strategy = strategy_for(runtime)
    (one, one_sgd, one_rate), (two, two_sgd, two_rate) = parts(), parts()
    bundle = Bundle([one, two], [one_sgd, two_sgd], [two_rate, one_rate], ["loader"])
    prepared = strategy.prepare(bundle)
    assert prepared.models == [one, two]
    assert [optimizer.optimizer for optimizer in prepared.optimizers] == [one_sgd, two_sgd]
    assert [scheduler.scheduler for scheduler in prepared.schedulers] == [two_rate, one_rate]
    assert [scheduler.optimizers for scheduler in prepared.schedulers] == [
        [prepared.optimizers[1]],
        [prepared.optimizers[0]],
    ]
    assert prepared.loaders == ["loader"]
    assert bundle.optimizers == [one_sgd, two_sgd]


def test_preparing_twice_changes_nothing(runtime):
    strategy = strategy_for(runtime)
    model, optimizer, scheduler = parts()
    once = strategy.prepare(Bundle([model], [optimizer], [scheduler]))
    twice = strategy.prepare(Bundle(once.models, once.optimizers, once.schedulers))
    assert twice == once


def test_a_scheduler_prepared_later_finds_its_optimizer(runtime):
    strategy = strategy_for(runtime)
    (_, one, _), (_, two, two_rate) = parts(), parts()
    strategy.prepare_optimizer(one)
    prepared = strategy.prepare_optimizer(two)
    assert strategy.prepare_scheduler(two_rate).optimizers == [prepared]


def test_a_scheduler_made_on_a_prepared_optimizer_finds_it(runtime):
    strategy = strategy_for(runtime)
    optimizer = strategy.prepare_optimizer(parts()[1])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert strategy.prepare_scheduler(scheduler).optimizers == [optimizer]


def test_a_scheduler_of_an_unknown_optimizer_follows_those_prepared_with_it(runtime):
    strategy = strategy_for(runtime)
    (_, one, _), (_, _, stranger) = parts(), parts()
    prepared = strategy.prepare(Bundle(optimizers=[one], schedulers=[stranger]))
    assert prepared.schedulers[0].optimizers == prepared.optimizers


def test_schedulers_are_set_up_as_the_run_specifies(runtime):
    settings = SchedulerSettings(step_with_optimizer=False, split_batches=True, unit="optimizer_step")
    scheduler = strategy_for(runtime, scheduling=settings).prepare_scheduler(parts()[2])
    assert isinstance(scheduler, AcceleratedScheduler)
    assert (scheduler.step_with_optimizer, scheduler.split_batches, scheduler.scheduler_unit) == (
        False,
        True,
        "optimizer_step",
    )


def test_loaders_are_prepared_by_the_caller(runtime):
    assert strategy_for(runtime).prepare_loader("loader", "prepared {}".format) == "prepared loader"


def test_placement_is_chosen_per_object(runtime):
    runtime.device = torch.device("meta")
    strategy = strategy_for(runtime)
    placed = strategy.prepare(Bundle(models=[nn.Linear(1, 1), nn.Linear(1, 1)]))
    assert [model.weight.device.type for model in placed.models] == ["meta", "meta"]
    chosen = strategy.prepare(
        Bundle(models=[nn.Linear(1, 1), nn.Linear(1, 1)], optimizers=[parts()[1]]),
        device_placement=Placement(models=[False, True], optimizers=[False]),
    )
    assert [model.weight.device.type for model in chosen.models] == ["cpu", "meta"]
    assert chosen.optimizers[0].device_placement is False


def test_a_placement_of_the_wrong_length_is_refused(runtime):
    with pytest.raises(ValueError, match="zip"):
        strategy_for(runtime).prepare(
            Bundle(models=[nn.Linear(1, 1)]), device_placement=Placement([True] * 2)
        )


def test_models_are_converted_then_compiled(runtime):
    strategy = strategy_for(runtime, "bf16", dynamo=TorchDynamoPlugin(backend="eager"))
    model = nn.Sequential(nn.Linear(2, 2))
    prepared = strategy.prepare_model(model)
    assert prepared is model
    assert is_compiled(model)
    assert prepared(torch.ones(1, 2)).dtype is torch.float32
    assert strategy.unwrap(prepared, keep_torch_compile=False, keep_fp32_wrapper=False) is model
    assert is_compiled(model)
    assert "__prepare_scriptable__" not in model.__dict__


@pytest.mark.parametrize("evaluation_mode", [True, False])
def test_models_are_compiled_for_training_and_evaluation(runtime, evaluation_mode):
    strategy = strategy_for(runtime, dynamo=TorchDynamoPlugin(backend="eager"))
    assert is_compiled(strategy.prepare_model(nn.Linear(2, 2), evaluation_mode=evaluation_mode))


def test_backward_scales_under_fp16_and_passes_arguments_on(runtime):
    strategy = strategy_for(runtime, "fp16", [GradScalerKwargs(init_scale=4.0)])
    weight = nn.Parameter(torch.ones(1))
    loss = weight.sum()
    strategy.backward(loss, retain_graph=True)
    strategy.backward(loss)
    assert weight.grad.item() == 8.0


def test_backward_is_plain_without_a_scaler(runtime):
    weight = nn.Parameter(torch.ones(2))
    strategy_for(runtime).backward(weight * 3, gradient=torch.tensor([1.0, 2.0]))
    assert weight.grad.tolist() == [3.0, 6.0]


def test_optimizers_share_the_scaler_of_the_run(runtime):
    strategy = strategy_for(runtime, "fp16")
    optimizer = strategy.prepare_optimizer(parts()[1])
    assert optimizer.scaler is strategy.context.precision.scaler
    assert isinstance(optimizer, AcceleratedOptimizer)


def test_clipping_by_norm_returns_the_norm_and_takes_any_iterable(runtime):
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for weight, gradient in zip(weights, (3.0, 4.0), strict=True):
        weight.grad = torch.tensor([gradient])
    strategy = strategy_for(runtime)
    assert strategy.clip_grad_norm(iter(weights), 1.0).item() == 5.0
    assert [round(weight.grad.item(), 4) for weight in weights] == [0.6, 0.8]
    assert strategy.clip_grad_norm(weights[0], 10.0, norm_type=float("inf")).item() == pytest.approx(0.6)


def test_clipping_by_value(runtime):
    weight = nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([-3.0, 0.5])
    strategy_for(runtime).clip_grad_value([weight], 1.0)
    assert weight.grad.tolist() == [-1.0, 0.5]


def test_there_is_nothing_to_synchronise(runtime):
    strategy = strategy_for(runtime)
    model = nn.Linear(1, 1)
    for context in (
        strategy.gradient_sync(model, sync=Sync.LATER),
        trigger_sync_in_backward(model),
        strategy.join_uneven_inputs([model]),
    ):
        with context:
            strategy.backward(model(torch.ones(1, 1)).sum())
    assert model.bias.grad.item() == 3.0
    assert strategy.capabilities == Capabilities(takes_exchanged_layers=True, needs_collectives=False)


def test_states_go_out_and_in(runtime):
    strategy = strategy_for(runtime, dynamo=TorchDynamoPlugin(backend="eager"))
    model, optimizer, _ = parts()
    prepared = strategy.prepare(Bundle([model], [optimizer]))
    state = full_model_state(strategy, strategy.unwrap(prepared.models[0], keep_torch_compile=False))
    assert list(state) == ["weight", "bias"]
    strategy.load_model_state(model, {key: torch.zeros_like(value) for key, value in state.items()})
    assert not model.weight.any()
    saved = strategy.optimizer_tensors(optimizer)
    saved["param_groups"][0]["lr"] = 0.125
    strategy.load_optimizer_state(optimizer, saved)
    assert optimizer.param_groups[0]["lr"] == 0.125


def test_a_prepared_optimizer_is_released_with_its_last_reference(runtime):
    strategy = strategy_for(runtime)
    prepared = strategy.prepare_optimizer(parts()[1])
    assert list(strategy._optimizers) == [prepared]
    del prepared
    assert list(strategy._optimizers) == []
