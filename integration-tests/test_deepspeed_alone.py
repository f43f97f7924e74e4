"""One rank, with this release of DeepSpeed and the oldest that is allowed, must train as plain PyTorch does."""

from __future__ import annotations

import os
import sys
import tomllib
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_runs import assert_equal, begin, plugin, sgd, steps, weights_of
from torch import nn

from accel import Accelerator
from accel_backends.plugins.deepspeed.loading import OLDEST_RELEASE
from accel_state import ConfigError
from accel_state.errors import AccelError
from tools.harness.scripts import run_command

pytestmark = pytest.mark.engine("deepspeed")
IS_OLDEST = os.environ.get("ACCEL_TEST_RELEASE") == OLDEST_RELEASE
if IS_OLDEST:  # its operators are not compiled
    import_module("deepspeed.comm.torch").build_shm_op = lambda: None  # type: ignore[attr-defined]
STAGES = pytest.mark.parametrize("stage", [1, 2, 3])


def test_the_oldest_release_is_what_the_package_requires():
    project = Path(__file__).parents[1] / "packages/accel-backends/pyproject.toml"
    extras = tomllib.loads(project.read_text())["project"]["optional-dependencies"]
    assert extras["deepspeed"] == [f"deepspeed>={OLDEST_RELEASE}"]


@pytest.mark.timeout(600)
def test_the_oldest_release_does_the_same(tmp_path):
    words = ["--engine", "deepspeed", "-k", "not oldest_release", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command = [sys.executable, "-m", "pytest", "-q", *words, f"--basetemp={tmp_path}/tests", __file__]
    environ = {"PYTHONPATH": os.environ["ACCEL_TEST_OLDEST_DEEPSPEED"], "ACCEL_TEST_RELEASE": OLDEST_RELEASE}
    done = run_command(command, env=environ, timeout_s=500)
    assert done.returncode == 0, done.stdout + done.stderr


def linear(num_models: int = 1) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Linear(8, 4, bias=False) for _ in range(num_models)]


def rows(num: int = 4) -> list[torch.Tensor]:
    return [torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(num)]


def prepared(stage: int, *, num_models: int = 1, accumulate: int = 1) -> tuple[Accelerator, Any, Any]:
    """Return as many linear models as requested, and the optimizer of each."""
    accelerator = begin(plugin(stage), gradient_accumulation_steps=accumulate)
    pairs = [accelerator.prepare(one, sgd(one, 0.1)) for one in linear(num_models)]
    return accelerator, *zip(*pairs, strict=True)


def step_alone(model: nn.Module, batch: torch.Tensor, limit: float) -> float:
    """Step with plain PyTorch; return the norm of the gradients."""
    model.zero_grad()
    model(batch).square().sum().backward()
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), limit))
    sgd(model, 0.1).step()
    return norm


def release() -> str:
    return import_module("deepspeed").__version__.strip()


def test_the_release_is_the_wanted_one(world):
    assert world(1).run(release) == [os.environ.get("ACCEL_TEST_RELEASE", version("deepspeed"))]


def clip(stage: int) -> None:
    accelerator, [model], [optimizer] = prepared(stage)
    [alone], (first, second) = linear(), rows(2)
    accelerator.backward(model(first).square().mean() * float("inf"))
    assert float(accelerator.clip_grad_norm_(model.parameters(), 0.1)) == float("inf")
    optimizer.zero_grad()
    accelerator.backward(model(second).square().sum())
    norm = accelerator.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    assert float(norm) == pytest.approx(step_alone(alone, second, 0.1), rel=1e-6)
    assert_equal(weights_of(accelerator, model)["weight"], alone.weight.detach(), atol=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_gradients_are_clipped_and_those_that_are_not_finite_have_an_infinite_norm(world, stage):
    world(1).run(clip, stage)


def measure_norms(stage: int) -> None:
    """Clip one step, then take one without; count how often DeepSpeed computes a norm in each."""
    accelerator, [model], [optimizer] = prepared(stage)
    [alone] = linear()
    inner, calls = optimizer.optimizer, []
    measure = inner.get_grad_norm_direct
    inner.get_grad_norm_direct = lambda *args, **options: calls.append(1) or measure(*args, **options)
    for number, (batch, limit) in enumerate(zip(rows(2), (0.1, float("inf")), strict=True), 1):
        accelerator.backward(model(batch).square().sum())
        if number == 1:
            accelerator.clip_grad_norm_(model.parameters(), limit)
        steps(optimizer)
        norm = step_alone(alone, batch, limit)
        assert len(calls) == number
    assert float(model.get_global_grad_norm()) == pytest.approx(norm, rel=1e-6)
    assert_equal(weights_of(accelerator, model)["weight"], alone.weight.detach(), atol=1e-6)


@pytest.mark.parametrize("stage", (3,) if IS_OLDEST else (1, 2, 3))
def test_a_clipped_step_computes_the_norm_once_and_the_next_its_own(world, stage):
    world(1).run(measure_norms, stage)


def gather_together() -> None:
    import deepspeed

    original, entered = deepspeed.zero.GatheredParameters, []

    class Counted(original):  # type: ignore[misc, valid-type]
        def __enter__(self) -> Any:
            entered.append(len(self.params))
            return super().__enter__()

    accelerator = begin(plugin(3))
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 4))
    wanted = {name: value.clone() for name, value in model.state_dict().items()}
    model, _ = accelerator.prepare(model, sgd(model))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepspeed.zero, "GatheredParameters", Counted)
        found = weights_of(accelerator, model)
    assert entered == [6]
    assert list(found) == list(wanted)
    assert_equal(found, wanted)


def test_the_parameters_of_a_full_state_are_gathered_together(world):
    world(1).run(gather_together)


class Rows(torch.optim.SGD):
    """Has state that belongs to no single value of a parameter."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter]["rows"] = torch.ones(2)
        return super().step(closure)


def save_odd_state(folder: Path) -> None:
    accelerator, [bare] = begin(plugin(1)), linear()
    model, optimizer = accelerator.prepare(bare, Rows(bare.parameters(), lr=0.1))
    accelerator.backward(model(rows()[0]).square().mean())
    optimizer.step()
    reason = (
        r"`rows` of the Rows has the shape \(2,\).*Use another optimizer, such as AdamW, or train with DDP\."
    )
    with pytest.raises(AccelError, match=reason):
        accelerator.save_state(str(folder))


def test_state_that_could_not_be_loaded_is_not_saved(world, tmp_path):
    world(1).run(save_odd_state, tmp_path)


def clip_by_groups(stage: int) -> None:
    accelerator, [model], [optimizer] = prepared(stage)
    accelerator.backward(model(rows()[0]).square().sum())
    flat = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    reason = "got 0 parameters of models that DeepSpeed trains and [01] other tensors.*Pass `model.param"
    with pytest.raises(ConfigError, match=f"`clip_grad_norm_` {reason}"):
        accelerator.clip_grad_norm_(flat, 0.1)


@STAGES
def test_flat_tensors_of_the_prepared_optimizer_are_not_clipped_in_silence(world, stage):
    world(1).run(clip_by_groups, stage)


def train_jointly(stage: int) -> None:
    accelerator, models, optimizers = prepared(stage, accumulate=4, num_models=2)
    alone = linear(2)
    for batch in rows():
        ((alone[0](batch) - alone[1](batch)).square().mean() / 4).backward()
        with accelerator.accumulate(*models):
            accelerator.backward((models[0](batch) - models[1](batch)).square().mean())
            steps(*optimizers)
    for model, expected in zip(models, alone, strict=True):
        sgd(expected, 0.1).step()
        assert_equal(weights_of(accelerator, model)["weight"], expected.weight.detach(), atol=1e-6)


@STAGES
def test_one_accumulated_loss_trains_two_models_alike(world, stage):
    world(1).run(train_jointly, stage)


def refuse_joint_loss() -> None:
    accelerator, [one, other], _ = prepared(0, num_models=2)
    reason = "one loss of several models, but `Linear` has `fp16.enabled` False and ZeRO stage 0"
    with pytest.raises(
        ConfigError, match=f"{reason}.*Compute one for each, or use ZeRO 1, 2 or 3 in bf16 or fp32"
    ):
        accelerator.backward((one(rows()[0]) - other(rows()[0])).square().mean())


def test_one_loss_of_models_without_zero_is_refused_by_name(world):
    world(1).run(refuse_joint_loss)


def resume_in_bf16(folder: Path, kind: str) -> None:
    """Continue from a checkpoint; what DeepSpeed does for its fused Adam, it does for any here."""
    from deepspeed.runtime import engine

    def run() -> tuple[Accelerator, Any, Any]:
        accelerator = begin(plugin(0), mixed_precision="bf16")
        model = nn.Sequential(*linear(), nn.Linear(4, 3))
        return accelerator, *accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=0.1))

    def step(accelerator: Accelerator, model: Any, optimizer: Any, batch: torch.Tensor) -> Any:
        accelerator.backward(model(batch.bfloat16()).square().mean())
        steps(optimizer)
        return weights_of(accelerator, model)

    first, second = rows(2)
    with pytest.MonkeyPatch.context() as patch:
        if kind == "FP16_Optimizer":
            patch.setattr(engine, "FusedAdam", torch.optim.AdamW)
        saved = run()
        assert type(saved[1].optimizer).__name__ == kind
        step(*saved, first)
        saved[0].save_state(str(folder / "saved"))
        reason = "DeepSpeed's own format is not read here. Leave `checkpoint_format` out"
        with pytest.raises(AccelError, match=reason):
            saved[0].save_state(str(folder / "own"), checkpoint_format="deepspeed")
        wanted = step(*saved, second)
        saved[0].free_memory()
        resumed = run()
        resumed[0].load_state(str(folder / "saved"))
        assert_equal(step(*resumed, second), wanted)


@pytest.mark.parametrize("kind", ["FP16_UnfusedOptimizer", "FP16_Optimizer"])
def test_bf16_without_zero_continues_from_its_checkpoint_bit_for_bit(world, tmp_path, kind):
    world(1).run(resume_in_bf16, tmp_path, kind)


def follow_a_schedule_of_deepspeed() -> None:
    from deepspeed.runtime.lr_schedules import WarmupLR

    accelerator, [model] = begin(plugin(1), gradient_accumulation_steps=4), linear()
    optimizer = sgd(model)
    schedule = WarmupLR(optimizer, 0.0, 0.1, warmup_num_steps=100, warmup_type="linear")
    model, optimizer, prepared_schedule = accelerator.prepare(model, optimizer, schedule)
    for batch in [*rows(), *rows()]:
        with accelerator.accumulate(model):
            accelerator.backward(model(batch).square().mean())
            steps(optimizer, prepared_schedule)
    assert schedule.last_batch_iteration == 1
    assert prepared_schedule.state_dict() == {"last_batch_iteration": 1}


def test_a_schedule_of_deepspeeds_own_follows_the_optimizer_and_is_saved(world):
    world(1).run(follow_a_schedule_of_deepspeed)


class Seen(nn.Module):
    """Keeps what its forward sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, batch: torch.Tensor, *, timesteps: torch.Tensor) -> torch.Tensor:
        self.seen = timesteps.tolist(), self.layer.weight.dtype, torch.is_autocast_enabled("cpu")
        return self.layer(batch)


def see_inputs(has_autocast: bool, is_trained: bool) -> None:
    sections = {"torch_autocast": {"enabled": True, "dtype": "bfloat16"}} if has_autocast else None
    accelerator, model = begin(plugin(1, sections), mixed_precision="bf16"), Seen()
    accelerator.prepare(*([model, sgd(model)] if is_trained else [model]))
    times = torch.tensor([501.37, 999.0])
    batch = rows()[0] if has_autocast else rows()[0].bfloat16()
    outputs = accelerator._models[-1](batch, timesteps=times)
    assert model.seen == (times.tolist(), torch.float32 if has_autocast else torch.bfloat16, has_autocast)
    assert outputs.dtype == (torch.bfloat16 if has_autocast else torch.float32)
    accelerator.free_memory()


@pytest.mark.parametrize(("has_autocast", "is_trained"), [(False, True), (False, False), (True, True)])
def test_inputs_in_bf16_stay_as_they_are_given_and_autocast_keeps_parameters_in_fp32(
    world, has_autocast, is_trained
):
    world(1).run(see_inputs, has_autocast, is_trained)


def compile_by_the_engine() -> None:
    accelerator, [model] = begin(plugin(1), dynamo_backend="eager"), linear()
    model, _ = accelerator.prepare(model, sgd(model))
    assert model.is_compiled
    accelerator.free_memory()


def test_a_model_is_compiled_by_its_engine(world):
    world(1).run(compile_by_the_engine)


def place_a_teacher() -> None:
    accelerator, teacher = begin(plugin(2), mixed_precision="bf16"), nn.Linear(4, 4)
    teacher.scaled = nn.Parameter(torch.ones(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
    teacher = accelerator.prepare(teacher)
    assert (teacher.weight.dtype, teacher.scaled.dtype) == (torch.bfloat16, torch.float8_e4m3fn)


def test_float8_values_of_a_model_that_is_not_trained_stay(world):
    world(1).run(place_a_teacher)


def leave_accumulation_unmanaged() -> None:
    accelerator, [model] = begin(plugin(2, {"managed_gradient_accumulation": False})), linear()
    reason = "`managed_gradient_accumulation` is false.*Remove the key from the DeepSpeed config"
    with pytest.raises(ConfigError, match=reason):
        accelerator.prepare(model, sgd(model))


def test_an_unmanaged_accumulation_is_refused(world):
    world(1).run(leave_accumulation_unmanaged)
