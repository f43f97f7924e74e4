"""Going on from a checkpoint, in a new process, is as if nothing had been between."""

from __future__ import annotations

import random
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator, DataLoaderConfiguration
from accel_ops import set_seed

pytestmark = pytest.mark.engine("long")


class Noisy(Dataset):
    """Samples that follow from the index only."""

    def __len__(self) -> int:
        return 52

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.tensor(index % 3)


class Meter:
    """A custom object with a state: the losses so far."""

    def __init__(self) -> None:
        self.losses: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        return {"losses": torch.tensor(self.losses, dtype=torch.float64)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.losses = state["losses"].tolist()


def save_during_pass(accelerator: Accelerator, model: Any, folder: Path, *, is_background: bool) -> None:
    handle = accelerator.save_state(str(folder), blocking=not is_background)
    if is_background:
        with torch.no_grad():
            [parameter.zero_() for parameter in model.parameters()]
        handle.wait()


def train(
    last: int, *, save: Path | None = None, load: Path | None = None, is_background: bool = False,
    num_workers: int = 0, accumulate: int = 1, precision: str = "no", is_seedable: bool = False,
) -> tuple[list[float], dict[str, Any], Any]:  # fmt: skip
    """Train with all that draws random numbers or keeps a state up to a step; return losses, weights and the rate."""
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=precision,
        gradient_accumulation_steps=accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=is_seedable),
    )
    set_seed(3 if load is None else 99)  # what is loaded must not depend on it
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=200)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=num_workers)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    meter = Meter()
    accelerator.register_for_checkpointing(meter)
    if load is not None:
        accelerator.load_state(str(load), verify=True, restore_loaders=True)
    while len(meter.losses) < last:
        for inputs, labels in loader:
            noise = random.random() + np.random.rand()
            with accelerator.accumulate(model):
                loss = nn.functional.cross_entropy(model(inputs) + noise * 1e-2, labels)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            meter.losses.append(loss.item())
            if len(meter.losses) == last:
                if save is not None:
                    save_during_pass(accelerator, model, save, is_background=is_background)
                break
    weights = {name: value.tolist() for name, value in accelerator.get_state_dict(model).items()}
    return meter.losses, weights, scheduler.get_last_lr()


def resumed_and_unbroken(ranks: Any, folder: Path, *, is_background: bool = False, **options: Any) -> Any:
    unbroken = ranks.run(train, 40, **options)
    ranks.run(train, 20, save=folder, is_background=is_background, **options)
    ranks.close()  # new processes continue
    return ranks.run(train, 40, load=folder, **options), unbroken


@pytest.mark.parametrize(
    "options", [{"num_workers": 2, "accumulate": 2}, {"precision": "fp16", "is_seedable": True}]
)
def test_resuming_mid_epoch_is_bit_exact(world, tmp_path, options):
    resumed, unbroken = resumed_and_unbroken(world(1), tmp_path / "saved", **options)
    assert len(unbroken[0][0]) == 40
    assert resumed == unbroken


def test_resuming_on_two_processes_from_a_background_save_is_bit_exact(world, tmp_path):
    resumed, unbroken = resumed_and_unbroken(world(2), tmp_path / "saved", is_background=True)
    assert resumed[0] == unbroken[0]
    # Rank 1's earlier losses were not saved: a custom object is the main process's.
    assert resumed[1][0][20:] == unbroken[1][0][20:]
    assert resumed[1][1] == unbroken[1][1]
    assert unbroken[0][0][20:] != unbroken[1][0][20:]


def continue_alone(folder: Path) -> int:
    with redirect_stderr(StringIO()) as stderr:
        losses, *_ = train(10, load=folder)
    assert stderr.getvalue().count("every rank derives new random states") == 1
    return len(losses)


def test_one_process_continues_from_two_with_the_rest_of_the_epoch(world, tmp_path):
    world(2).run(train, 3, save=tmp_path / "saved")
    assert world(1).run(continue_alone, tmp_path / "saved") == [10]
