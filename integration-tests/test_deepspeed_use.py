"""What else is documented of DeepSpeed: sections of its config, gradients by hand, several models, inference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepspeed_use
import pytest
import torch
from deepspeed_launch import results_of

from tools.harness.models import make_batches, make_model

pytestmark = pytest.mark.engine("deepspeed")


def run_all(folder: Path) -> list[dict[str, Any]]:
    """Return what each of two ranks has found."""
    return results_of(deepspeed_use.__file__, folder)


everything = pytest.mark.parametrize("outcome", [run_all], indirect=True)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def loss_of(model: torch.nn.Module, batches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean over the batches of all ranks."""
    return torch.stack([model(batch).square().mean() for batch in batches]).mean()


def pairs(num: int) -> list[list[torch.Tensor]]:
    """Return what the two ranks read in each step."""
    batches = make_batches(2 * num)
    return [batches[2 * index : 2 * index + 2] for index in range(num)]


def assert_state(found: dict[str, torch.Tensor], model: torch.nn.Module) -> None:
    assert list(found) == list(model.state_dict())
    torch.testing.assert_close(found, dict(model.state_dict()), rtol=0, atol=1e-6)


@everything
@pytest.mark.parametrize(
    ("name", "rates"),
    [
        # 16 steps of the schedule are 8 of two ranks, of which 2 warm up.
        ("both", [0.0, 0.01, 0.02, 0.016667]),
        ("scheduler", [0.0, 0.01, 0.02, 0.016667]),
        ("callable", [0.01, 0.005, 0.0025, 0.00125]),
    ],
)
def test_optimizer_and_scheduler_may_come_from_the_config(outcome, name, rates):
    found = outcome[0]["sections"][name]
    assert found["rates"] == rates
    model = make_model("odd")
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
    for batches, rate in zip(pairs(4), [0.02 if name == "callable" else 0.0, *rates], strict=False):
        optimizer.param_groups[0]["lr"] = rate
        loss_of(model, batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert_state(found["state"], model)


@everything
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_gradients_may_be_accumulated_by_hand_dropped_and_found_infinite(outcome, stage):
    found = outcome[0]["gradients"][stage]
    assert found["first norm"] is found["partial norm"] is None
    assert "second `backward`" in found["second backward"]
    assert found["skipped"]
    assert found["unchanged"]
    assert found["stepped"]
    assert "2 of the 24 trained parameters" in found["subset"]
    assert "`norm_type` must be 2" in found["max norm"]
    assert "Use `clip_grad_norm_`" in found["value"]
    assert "not possible with the strategy `deepspeed`" in found["local sgd"]
    model = make_model("odd")
    _, second, third = pairs(3)
    loss_of(model, [*second, *third]).backward()
    sgd(model).step()
    assert_state(found["by hand"], model)


@everything
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_micro_batches_may_be_weighed_by_their_items(outcome, stage):
    model = make_model("odd")
    optimizer = sgd(model)
    steps = pairs(4)
    for start in (0, 2):
        rows = [
            batch[: 1 + (index + rank) % 4]
            for index in (start, start + 1)
            for rank, batch in enumerate(steps[index])
        ]
        model(torch.cat(rows)).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    assert_state(outcome[0]["items"][stage], model)


@everything
def test_a_teacher_may_be_sharded_next_to_a_student(outcome):
    student, teacher = make_model("odd"), make_model("odd", seed=8)
    optimizer = sgd(student)
    for batches in pairs(3):
        losses = [(student(batch) - teacher(batch).detach()).square().mean() for batch in batches]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert outcome[0]["distil"]["is cut"]
    assert_state(outcome[0]["distil"]["state"], student)


@everything
def test_two_models_may_be_trained_in_turn_and_together(outcome):
    models = [make_model("odd"), make_model("odd", seed=8)]
    optimizers = [sgd(model) for model in models]
    for batches in pairs(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            loss_of(model, batches).backward()
            optimizer.step()
            optimizer.zero_grad()
    for found, model in zip(outcome[0]["two"]["two"], models, strict=True):
        assert_state(found, model)
    losses = [(models[0](batch) - models[1](batch)).square().mean() for batch in make_batches(2)]
    torch.stack(losses).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_([*models[0].parameters(), *models[1].parameters()], 0.05)
    assert outcome[0]["two"]["norm"] == pytest.approx(float(norm), rel=1e-5)
    for optimizer in optimizers:
        optimizer.step()
    for found, model in zip(outcome[0]["two"]["one"], models, strict=True):
        assert_state(found, model)


@everything
@pytest.mark.parametrize("stage", [2, 3])
def test_a_model_may_be_evaluated_before_it_is_trained(outcome, stage):
    model = make_model("odd")
    found = outcome[0]["evaluate"][stage]
    with torch.no_grad():
        expected = model(make_batches(1)[0])
    torch.testing.assert_close(found["outputs"], expected)
    torch.testing.assert_close(found["again"], expected)
    loss_of(model, pairs(1)[0]).backward()
    sgd(model).step()
    assert_state(found["state"], model)


@everything
def test_layers_of_experts_are_gathered_in_full(outcome):
    model = deepspeed_use.make_experts()
    optimizer = sgd(model)
    for batches in pairs(2):
        loss_of(model, batches).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert outcome[0]["layers"]["marks"] == [False, True, False]
    assert_state(outcome[0]["layers"]["state"], model)


@everything
def test_features_in_another_dtype_than_the_parameters_are_named(outcome):
    for found in outcome:
        assert "parameters of the engine are torch.bfloat16" in found["dtypes"]
        assert "`argument 0` is torch.float32" in found["dtypes"]
        assert "`batch.to(torch.bfloat16)`" in found["dtypes"]
