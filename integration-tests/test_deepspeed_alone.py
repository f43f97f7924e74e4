"""One rank, with this release of DeepSpeed and the oldest that is allowed, must train as plain PyTorch does."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import deepspeed_alone
import preloaded
import pytest
import torch
from deepspeed_launch import launch

from accel_backends.plugins.deepspeed.loading import OLDEST_RELEASE

pytestmark = pytest.mark.engine("deepspeed")


def with_this_release(folder: Path) -> dict[str, Any]:
    return results(folder)


def with_the_oldest_release(folder: Path) -> dict[str, Any]:
    oldest = os.environ["ACCEL_TEST_OLDEST_DEEPSPEED"]
    return results(folder, OLDEST_RELEASE, PYTHONPATH=oldest, preload=preloaded.ACCEL)


def results(folder: Path, *arguments: str, **options: Any) -> dict[str, Any]:
    done = launch(deepspeed_alone.__file__, folder, folder, *arguments, num_processes=1, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return torch.load(folder / "0.pt")


releases = pytest.mark.parametrize("outcome", [with_this_release, with_the_oldest_release], indirect=True)
stages = pytest.mark.parametrize("stage", [1, 2, 3])


def test_the_oldest_release_is_what_the_package_requires():
    project = Path(__file__).parents[1] / "packages/accel-backends/pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert extras["deepspeed"] == [f"deepspeed>={OLDEST_RELEASE}"]


@releases
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_are_clipped_and_those_that_are_not_finite_have_an_infinite_norm(outcome, stage):
    [model] = deepspeed_alone.linear()
    model(deepspeed_alone.rows()[1]).square().sum().backward()
    norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1))
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    found = outcome["clip"][stage]
    assert found["infinite"] == float("inf")
    assert found["norm"] == pytest.approx(norm, rel=1e-6)
    torch.testing.assert_close(found["weights"], [model.weight.detach()], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("outcome", "stages_measured_once"),
    [(with_this_release, (1, 2, 3)), (with_the_oldest_release, (3,))],
    indirect=["outcome"],
)
def test_a_clipped_step_computes_the_norm_once_and_the_next_its_own(outcome, stages_measured_once):
    [model] = deepspeed_alone.linear()
    for batch, limit in zip(deepspeed_alone.rows(2), (0.1, float("inf")), strict=True):
        model.zero_grad()
        model(batch).square().sum().backward()
        norm = float(torch.nn.utils.clip_grad_norm_(model.parameters(), limit))
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    for stage in stages_measured_once:
        found = outcome["norms"][stage]
        assert found["counts"] == [1, 1]
        assert found["norm"] == pytest.approx(norm, rel=1e-6)
        torch.testing.assert_close(found["weights"], [model.weight.detach()], rtol=0, atol=1e-6)


@releases
def test_the_parameters_of_a_full_state_are_gathered_together(outcome):
    found = outcome["gathered"]
    assert found["entered"] == [6]
    assert list(found["found"]) == list(found["wanted"])
    assert all(torch.equal(value, found["wanted"][name]) for name, value in found["found"].items())


@releases
def test_state_that_could_not_be_loaded_is_not_saved(outcome):
    assert "`rows` of the Rows has the shape (2,)" in outcome["odd"]
    assert "Use another optimizer, such as AdamW, or train with DDP." in outcome["odd"]


@releases
@stages
def test_flat_tensors_of_the_prepared_optimizer_are_not_clipped_in_silence(outcome, stage):
    assert re.search(
        "`clip_grad_norm_` got 0 parameters of models that DeepSpeed trains and [01] other tensors.*Pass `model.param",
        outcome["groups"][stage],
    )


@releases
@stages
def test_one_accumulated_loss_trains_two_models_alike(outcome, stage):
    models = deepspeed_alone.linear(2)
    for batch in deepspeed_alone.rows():
        ((models[0](batch) - models[1](batch)).square().mean() / 4).backward()
    for model in models:
        torch.optim.SGD(model.parameters(), lr=0.1).step()
    wanted = [model.weight.detach() for model in models]
    torch.testing.assert_close(outcome["joint"][stage], wanted, rtol=0, atol=1e-6)


@releases
def test_one_loss_of_models_without_zero_is_refused_by_name(outcome):
    assert (
        "one loss of several models, but `Linear` has `fp16.enabled` False and ZeRO stage 0"
        in outcome["refused"]
    )
    assert "Compute one for each, or use ZeRO 1, 2 or 3 in bf16 or fp32." in outcome["refused"]


@releases
@pytest.mark.parametrize(("case", "kind"), [("saved", "FP16_UnfusedOptimizer"), ("fused", "FP16_Optimizer")])
def test_bf16_without_zero_continues_from_its_checkpoint_bit_for_bit(outcome, case, kind):
    found = outcome[case]
    assert found["kind"] == kind
    assert found["wanted"].keys() == found["found"].keys()
    assert all(torch.equal(value, found["found"][name]) for name, value in found["wanted"].items())
    assert "DeepSpeed's own format is not read here. Leave `checkpoint_format` out" in found["refused"]


@releases
def test_a_schedule_of_deepspeeds_own_follows_the_optimizer_and_is_saved(outcome):
    assert outcome["schedule"] == {"steps": 2, "state": {"last_batch_iteration": 1}}


@releases
@pytest.mark.parametrize("is_trained", [True, False])
def test_inputs_in_bf16_stay_as_they_are_given(outcome, is_trained):
    found = outcome["inputs"][is_trained]
    assert found["timesteps"] == torch.tensor([501.37, 999.0]).tolist()
    assert (found["weight"], found["outputs"]) == (torch.bfloat16, torch.float32)


@releases
def test_autocast_of_the_config_keeps_parameters_in_fp32(outcome):
    found = outcome["autocast"]
    assert (found["weight"], found["is autocast"], found["outputs"]) == (torch.float32, True, torch.bfloat16)


@releases
def test_a_model_is_compiled_by_its_engine(outcome):
    assert outcome["compiled"] is True


@releases
def test_float8_values_of_a_model_that_is_not_trained_stay(outcome):
    assert outcome["teacher"] == [torch.bfloat16, torch.float8_e4m3fn]


@releases
def test_an_unmanaged_accumulation_is_refused(outcome):
    assert "`managed_gradient_accumulation` is false" in outcome["managed"]
    assert "Remove the key from the DeepSpeed config." in outcome["managed"]
