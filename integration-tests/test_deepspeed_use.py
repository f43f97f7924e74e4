"""What else is documented of DeepSpeed: sections of its config, gradients by hand, several models, inference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from deepspeed_runs import assert_equal, assert_weights, begin, plugin, sgd, steps, weights_of
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator, DeepSpeedPlugin
from accel.local_sgd import LocalSGD
from accel_backends import DummyOptim, DummyScheduler
from accel_state import ConfigError, StateError
from tools.harness.models import make_batches, make_model

pytestmark = pytest.mark.engine("deepspeed")

ADAMW = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto", "torch_adam": True}}
AUTO = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")
WARMUP = {"type": "WarmupDecayLR", "params": {**AUTO, "warmup_type": "linear"}}


def pairs(num: int) -> list[list[torch.Tensor]]:
    """Return what the two ranks read in each step."""
    batches = make_batches(2 * num)
    return [batches[2 * index : 2 * index + 2] for index in range(num)]


def loss_of(model: nn.Module, batches: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean over the batches of all ranks."""
    return torch.stack([model(batch).square().mean() for batch in batches]).mean()


def step(accelerator: Accelerator, model: Any, batches: list[torch.Tensor], *stepped: Any) -> None:
    accelerator.backward(loss_of(model, [batches[accelerator.process_index]]))
    steps(*stepped)


def step_alone(model: nn.Module, batches: list[torch.Tensor], optimizer: torch.optim.Optimizer) -> None:
    loss_of(model, batches).backward()
    steps(optimizer)


def train_by_the_config(sections: dict[str, Any], first_rate: float, rates: list[float]) -> None:
    accelerator, alone, model = begin(plugin(2, sections)), make_model("odd"), make_model("odd")
    kind = DummyOptim if "optimizer" in sections else torch.optim.AdamW
    optimizer: Any = kind(model.parameters(), lr=0.02, weight_decay=0.1)
    options: dict[str, Any] = {"total_num_steps": 16, "warmup_num_steps": 2}
    if "scheduler" not in sections:
        options = {"lr_scheduler_callable": lambda made: torch.optim.lr_scheduler.ExponentialLR(made, 0.5)}
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, DummyScheduler(optimizer, **options))
    alone_optimizer = torch.optim.AdamW(alone.parameters(), lr=first_rate, weight_decay=0.1)
    for batches, rate in zip(pairs(4), rates, strict=True):
        step(accelerator, model, batches, optimizer, scheduler)
        step_alone(alone, batches, alone_optimizer)
        assert optimizer.param_groups[0]["lr"] == pytest.approx(rate, abs=1e-6)
        alone_optimizer.param_groups[0]["lr"] = rate
    assert_weights(accelerator, model, alone)


@pytest.mark.parametrize(
    ("sections", "first_rate", "rates"),
    [
        # 16 steps of the schedule are 8 of two ranks, of which 2 warm up.
        ({"optimizer": ADAMW, "scheduler": WARMUP}, 0.0, [0.0, 0.01, 0.02, 0.02 * 5 / 6]),
        (
            {"scheduler": {**WARMUP, "params": {**WARMUP["params"], "warmup_max_lr": 0.02}}},
            0.0,
            [0.0, 0.01, 0.02, 0.02 * 5 / 6],
        ),
        ({"optimizer": ADAMW}, 0.02, [0.01, 0.005, 0.0025, 0.00125]),
    ],
    ids=["both", "scheduler", "callable"],
)
def test_optimizer_and_scheduler_may_come_from_the_config(world, sections, first_rate, rates):
    world(2).run(train_by_the_config, sections, first_rate, rates)


def handle_gradients(stage: int) -> None:
    """What a loop may do next to the ordinary, and what it may not."""
    accelerator, alone, model = begin(plugin(stage)), make_model("odd"), make_model("odd")
    model, optimizer = accelerator.prepare(model, sgd(model))
    first, second, third = (batches[accelerator.process_index] for batches in pairs(3))
    before = weights_of(accelerator, model)

    def backward(batch: torch.Tensor, factor: float = 1.0) -> None:
        accelerator.backward(model(batch).square().mean() * factor)

    optimizer.step()  # without gradients
    assert model.get_global_grad_norm() is None
    backward(first)
    with pytest.raises(StateError, match="second `backward`"):
        backward(second)
    optimizer.zero_grad()
    backward(second, float("inf"))
    optimizer.step()
    assert accelerator.optimizer_step_was_skipped
    assert_equal(weights_of(accelerator, model), before)
    with accelerator.no_sync(model):
        backward(second, 0.5)
    assert accelerator.clip_grad_norm_(model.parameters(), 1.0) is None
    backward(third, 0.5)
    with pytest.raises(ConfigError, match="2 of the 24 trained parameters"):
        accelerator.clip_grad_norm_(list(model.parameters())[:2], 1.0)
    with pytest.raises(ConfigError, match="`norm_type` must be 2"):
        accelerator.clip_grad_norm_(model.parameters(), 1.0, norm_type=1)
    with pytest.raises(ConfigError, match="Use `clip_grad_norm_`"):
        accelerator.clip_grad_value_(model.parameters(), 1.0)
    with pytest.raises(ConfigError, match="not possible with the strategy `deepspeed`"):
        LocalSGD(accelerator, model, 2)
    optimizer.step()
    assert not accelerator.optimizer_step_was_skipped
    _, two, three = pairs(3)
    step_alone(alone, [*two, *three], sgd(alone))
    assert_weights(accelerator, model, alone)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_may_be_accumulated_by_hand_dropped_and_infinite(world, stage):
    world(2).run(handle_gradients, stage)


def weigh_items() -> None:
    accelerator, alone, model = (
        begin(plugin(0), gradient_accumulation_steps=2),
        make_model("odd"),
        make_model("odd"),
    )
    model, optimizer = accelerator.prepare(model, sgd(model))
    alone_optimizer = sgd(alone)
    rows = [[batch[: 1 + (n + rank) % 4] for rank, batch in enumerate(two)] for n, two in enumerate(pairs(4))]
    for number, both in enumerate(rows):
        own = both[accelerator.process_index]
        with accelerator.accumulate(model):
            accelerator.backward(model(own).square().mean(), num_items=len(own))
            steps(optimizer)
        if number % 2:
            step_alone(alone, [torch.cat([*rows[number - 1], *both])], alone_optimizer)
    assert_weights(accelerator, model, alone)


def test_micro_batches_may_be_weighed_by_their_items_without_zero(world):
    world(2).run(weigh_items)


def distil() -> None:
    """A teacher under ZeRO 3, which is not trained, next to a student under ZeRO 2."""
    teaches = DeepSpeedPlugin(hf_ds_config={"zero_optimization": {"stage": 3}})
    accelerator = begin(None, deepspeed_plugins={"student": plugin(2), "teacher": teaches})
    alone, teacher_alone = make_model("odd"), make_model("odd", seed=8)
    student, teacher = make_model("odd"), make_model("odd", seed=8)
    student, optimizer = accelerator.prepare(student, sgd(student))
    accelerator.state.select_deepspeed_plugin("teacher")
    teacher = accelerator.prepare(teacher)
    assert not any(one.numel() for one in accelerator.unwrap_model(teacher).parameters())  # all are sharded
    alone_optimizer = sgd(alone)
    teacher.eval()
    for batches in pairs(3):
        batch = batches[accelerator.process_index]
        with torch.no_grad():
            wanted = teacher(batch)
        accelerator.backward((student(batch) - wanted).square().mean())
        losses = [(alone(each) - teacher_alone(each).detach()).square().mean() for each in batches]
        torch.stack(losses).mean().backward()
        steps(optimizer, alone_optimizer)
    assert_weights(accelerator, student, alone)


def test_a_teacher_may_be_sharded_next_to_a_student(world):
    world(2).run(distil)


def train_two(num_accelerators: int) -> None:
    """Two models in turn, by one Accelerator or by two, then by one loss."""
    first = begin(DeepSpeedPlugin(zero_stage=2))
    accelerators = [first, first if num_accelerators == 1 else Accelerator()]
    alone, models = ([make_model("odd"), make_model("odd", seed=8)] for _ in range(2))
    data = torch.cat(make_batches(6))
    prepared = [
        one.prepare(model, sgd(model), DataLoader(data, batch_size=4))
        for one, model in zip(accelerators, models, strict=True)
    ]
    alone_optimizers = [sgd(model) for model in alone]
    optimizers = [optimizer for _, optimizer, _ in prepared]
    ours, theirs = (model for model, *_ in prepared)
    for batch, batches in zip(prepared[0][2], pairs(3), strict=True):
        loss = theirs(batch).square().mean()  # before the other's `backward`
        first.backward(ours(batch).square().mean())
        steps(optimizers[0])
        accelerators[1].backward(loss)
        steps(optimizers[1])
        for model, optimizer in zip(alone, alone_optimizers, strict=True):
            step_alone(model, batches, optimizer)
    if num_accelerators == 1:
        batches = make_batches(2)
        batch = batches[first.process_index]
        first.backward((ours(batch) - theirs(batch)).square().mean())
        norm = first.clip_grad_norm_([*ours.parameters(), *theirs.parameters()], 0.05)
        losses = [(alone[0](each) - alone[1](each)).square().mean() for each in batches]
        torch.stack(losses).mean().backward()
        expected = nn.utils.clip_grad_norm_([*alone[0].parameters(), *alone[1].parameters()], 0.05)
        assert float(norm) == pytest.approx(float(expected), rel=1e-5)
        steps(*optimizers, *alone_optimizers)
    for one, model, expected in zip(accelerators, (ours, theirs), alone, strict=True):
        assert_weights(one, model, expected)


@pytest.mark.parametrize("num_accelerators", [1, 2])
def test_two_models_may_be_trained_in_turn_and_together(world, num_accelerators):
    world(2).run(train_two, num_accelerators)


def evaluate_first(stage: int) -> None:
    accelerator, alone, bare = begin(plugin(stage)), make_model("odd"), make_model("odd")
    batches = make_batches(2)
    expected = alone(batches[0]).detach()
    with torch.no_grad():
        assert_equal(accelerator.prepare(bare)(batches[0]), expected, atol=1e-5)
    model, optimizer = accelerator.prepare(bare, sgd(bare))
    with torch.no_grad():
        assert_equal(model(batches[0]), expected, atol=1e-5)
    step(accelerator, model, batches, optimizer)
    step_alone(alone, batches, sgd(alone))
    assert_weights(accelerator, model, alone)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_model_may_be_evaluated_before_it_is_trained(world, stage):
    world(2).run(evaluate_first, stage)


class Expert(nn.Sequential):
    """Layers by another name."""


def make_experts() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 7), Expert(nn.Linear(7, 7)), nn.Linear(7, 1))


def gather_experts_in_full() -> None:
    config = {"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3}}
    accelerator = begin(DeepSpeedPlugin(hf_ds_config=config, transformer_moe_cls_names="Expert"))
    alone, layers = make_experts(), make_experts()
    model, optimizer = accelerator.prepare(layers, sgd(layers))
    assert [bool(getattr(module, "_z3_leaf", False)) for module in layers] == [False, True, False]
    alone_optimizer = sgd(alone)
    for batches in pairs(2):
        step(accelerator, model, batches, optimizer)
        step_alone(alone, batches, alone_optimizer)
    assert_weights(accelerator, model, alone)


def test_layers_of_experts_are_gathered_in_full(world):
    world(2).run(gather_experts_in_full)


def feed_another_dtype() -> None:
    accelerator, model = begin(plugin(1, {"bf16": {"enabled": True}})), make_model("odd")
    model, _ = accelerator.prepare(model, sgd(model))
    with pytest.raises(ConfigError) as raised:
        model(make_batches(1)[0])
    for part in ("engine are torch.bfloat16", "`argument 0` is torch.float32", "`batch.to(torch.bfloat16)`"):
        assert part in str(raised.value)


def test_features_in_another_dtype_than_the_parameters_are_named(world):
    world(2).run(feed_another_dtype)
