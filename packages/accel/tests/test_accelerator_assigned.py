"""Attributes that scripts written for Accelerate assign have the effect that they have there."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator
from accel.utils import (
    AORecipeKwargs,
    AutocastKwargs,
    DataLoaderConfiguration,
    GradScalerKwargs,
    ProfileKwargs,
    ProjectConfiguration,
)
from accel_trackers import GeneralTracker


def prepared(**arguments: Any) -> tuple[Accelerator, nn.Module, Any, Any, Any]:
    accelerator = Accelerator(cpu=True, **arguments)
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(torch.ones(3, 2))
    return accelerator, *accelerator.prepare(model, optimizer, scheduler, loader)


def test_what_is_no_longer_in_a_list_is_not_saved(tmp_path: Path):
    accelerator, *_ = prepared()
    accelerator.register_for_checkpointing(nn.Linear(1, 1))

    accelerator._optimizers = []
    accelerator._schedulers = []
    accelerator._dataloaders = []
    accelerator._custom_objects = []
    accelerator.save_state(tmp_path / "some")

    names = {path.name for path in (tmp_path / "some").iterdir()}
    assert names == {"model.safetensors", "random_states_0.pkl", "accel_checkpoint.json"}
    accelerator._models = []
    accelerator.save_state(tmp_path / "none")
    assert not (tmp_path / "none" / "model.safetensors").exists()


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_an_assigned_scaler_scales_losses_and_its_state_is_saved(
    precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ACCEL_FP16_ON_CPU", "true")
    accelerator, model, optimizer, *_ = prepared(mixed_precision=precision)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    optimizer.scaler = accelerator.scaler
    before = model.weight.detach().clone()

    accelerator.backward(model(torch.ones(1, 2)).sum())
    assert torch.equal(model.weight.grad, torch.full((2, 2), 8.0))
    norm = accelerator.clip_grad_norm_(model.parameters(), 100.0)
    assert norm == pytest.approx(6**0.5)
    optimizer.step()
    assert torch.equal(model.weight, before - 1)

    accelerator.save_state(tmp_path / "state")
    accelerator.scaler.update(2.0)
    accelerator.load_state(tmp_path / "state")
    assert accelerator.scaler.get_scale() == 8.0


def test_settings_hold_for_what_is_prepared_afterwards():
    accelerator, *_ = prepared()
    accelerator.device_placement = False
    accelerator.rng_types = ["torch"]
    accelerator.dataloader_config = DataLoaderConfiguration(use_seedable_sampler=True)
    accelerator.step_scheduler_with_optimizer = False

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    model, optimizer, scheduler, loader = accelerator.prepare(
        model, optimizer, scheduler, DataLoader([1], shuffle=True)
    )
    optimizer.step()
    assert accelerator.use_seedable_sampler
    assert type(loader.sampler).__name__ == "SeedableRandomSampler"
    assert loader.device is None
    with accelerator.accumulate(model):
        accelerator.gradient_state.sync_gradients = False
        scheduler.step()
    assert scheduler.get_last_lr() == [0.1]  # not only when the optimizer steps


def test_hooks_of_checkpoints_can_be_read_and_replaced(tmp_path: Path):
    accelerator, *_ = prepared()
    calls: list[str] = []
    accelerator.register_save_state_pre_hook(lambda *given: calls.append("registered"))
    before = accelerator._save_model_state_pre_hook
    assert len(before) == 1
    accelerator._save_model_state_pre_hook = {0: lambda *given: calls.append("assigned")}
    accelerator._load_model_state_pre_hook = {0: lambda *given: calls.append("loading")}
    accelerator.save_state(tmp_path / "state")
    accelerator._save_model_state_pre_hook = before
    accelerator.save_state(tmp_path / "state")
    accelerator.load_state(tmp_path / "state")
    assert calls == ["assigned", "registered", "loading"]
    assert list(accelerator._load_model_state_pre_hook) == [0]


def test_recipes_of_8_bit_training_are_where_scripts_look_for_them():
    pytest.importorskip("torchao")
    recipe = AORecipeKwargs()
    accelerator = Accelerator(cpu=True, mixed_precision="fp8", kwargs_handlers=[recipe])
    assert accelerator.fp8_enabled
    assert accelerator.ao_recipe_handler is recipe
    assert accelerator.te_recipe_handler is accelerator.fp8_recipe_handler is None
    with pytest.warns(
        UserWarning, match="An assigned `AORecipeKwargs` has no effect: the Accelerator is built"
    ):
        accelerator.ao_recipe_handler = None


def test_assigned_handlers_and_folders_are_used(tmp_path: Path):
    accelerator, model, *_ = prepared(mixed_precision="bf16")
    accelerator.autocast_handler = AutocastKwargs(enabled=False)
    with accelerator.autocast():
        assert (torch.ones(1, 1) @ torch.ones(1, 1)).dtype is torch.float32

    accelerator.profile_handler = ProfileKwargs(output_trace_dir=str(tmp_path / "traces"))
    with accelerator.profile():
        model(torch.ones(1, 2))
    assert list((tmp_path / "traces").iterdir())

    accelerator.project_configuration = ProjectConfiguration(
        project_dir=str(tmp_path), automatic_checkpoint_naming=True, iteration=4
    )
    assert Path(str(accelerator.save_state())) == tmp_path / "checkpoints" / "checkpoint_4"

    handler = GradScalerKwargs(init_scale=4.0)
    with pytest.warns(
        UserWarning, match="An assigned `GradScalerKwargs` has no effect: the Accelerator is built"
    ):
        accelerator.scaler_handler = handler
    assert accelerator.scaler_handler is handler


class Kept(GeneralTracker):
    name = "kept"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self) -> None:
        super().__init__()
        self.logged: list[dict[str, Any]] = []

    @property
    def tracker(self) -> list[dict[str, Any]]:
        return self.logged

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        raise AssertionError

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.logged.append(values)


def test_assigned_trackers_are_logged_to():
    accelerator = Accelerator(cpu=True)
    tracker = Kept()
    accelerator.trackers = [tracker]
    accelerator.log({"loss": 1.0})
    assert accelerator.trackers == [tracker]
    accelerator.end_training()
    assert tracker.logged == [{"loss": 1.0}]


def test_the_users_loader_configuration_is_never_written_to():
    given = DataLoaderConfiguration()
    accelerator = Accelerator(cpu=True, dataloader_config=given)
    accelerator.even_batches = False
    assert given.even_batches
    assert not accelerator.even_batches
    accelerator.dataloader_config = given
    accelerator.even_batches = False
    assert given.even_batches


def test_a_deep_copy_of_an_accelerator_is_the_accelerator():
    accelerator, model, *_ = prepared()
    assert copy.deepcopy(accelerator) is accelerator
    trainer = copy.deepcopy({"accelerator": accelerator, "model": model})
    assert trainer["accelerator"] is accelerator
    assert trainer["model"] is not model


def test_an_accelerator_pickles_by_its_arguments():
    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=3)
    again = pickle.loads(pickle.dumps(accelerator))
    assert (again.mixed_precision, again.gradient_accumulation_steps) == ("bf16", 3)


class Discriminating(nn.Module):
    """Leaves a part out of `parameters()`, as trainers with its own optimizer do."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Linear(2, 2)
        self.discriminator = nn.Linear(2, 2)

    def parameters(self, recurse: bool = True) -> Any:
        return self.generator.parameters()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.discriminator(self.generator(inputs))


def train_both_parts() -> list[float]:
    accelerator = Accelerator(cpu=True)
    torch.manual_seed(0)
    model = Discriminating()
    optimizers = [
        torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.generator, model.discriminator)
    ]
    model, *optimizers = accelerator.prepare(model, *optimizers)
    accelerator.backward(model(torch.full((1, 2), 1.0 + accelerator.process_index)).square().sum())
    for optimizer in optimizers:
        optimizer.step()
    return [value for part in nn.Module.parameters(model) for value in part.flatten().tolist()]


def test_a_model_may_override_parameters(world: Any):
    first, second = world(2).run(train_both_parts)
    assert first == second
