"""Under DeepSpeed, checkpoints of Accelerate load here and ours load there, and both train alike."""

from __future__ import annotations

import os
import random
import sys
from importlib import import_module
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

# Ranks of no other file: transformers looks for Accelerate once, when it is imported.
pytestmark = [pytest.mark.engine("deepspeed"), pytest.mark.preload("accel.accelerator")]
NUM_BATCHES, ACCUMULATE, CLIP = 12, 3, 0.5


class Run:
    """A run of a package; the earlier ones of both are forgotten.

    On CPUs Accelerate's `Accelerator` takes each rank of DeepSpeed for the only one. So the script separates the ranks
    itself, the schedule does not change the rate while losses are compared, and Accelerate's files of random states,
    which both ranks write under one name, are not.
    """

    def __init__(
        self, package: str, stage: int, *, seed: int = 1, gamma: float = 1.0, **options: Any
    ) -> None:
        for name in ("accel", "accelerate"):
            state = import_module(f"{name}.state")
            state.AcceleratorState._reset_state()
            state.GradientState._reset_state()
        module = import_module(package)
        config = {
            "train_micro_batch_size_per_gpu": 4,
            "gradient_accumulation_steps": "auto",
            "gradient_clipping": CLIP,
            "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        }
        plugin = module.DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=False)
        self.accelerator = module.Accelerator(deepspeed_plugin=plugin, **options)
        torch.manual_seed(seed)
        # Two ranks divide the sizes: what fills a part up belongs to no checkpoint.
        model = nn.Sequential(nn.Linear(7, 34), nn.Tanh(), nn.Linear(34, 6))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(model, optimizer, scheduler)

    def train(self, num_batches: int = NUM_BATCHES) -> list[float]:
        """Return the loss of each batch of this rank."""
        rows = torch.randn(64, 4, 7, generator=torch.Generator().manual_seed(5))
        losses = []
        for number in range(num_batches):
            with self.accelerator.accumulate(self.model):
                loss = self.model(rows[2 * number + int(os.environ["RANK"])]).square().mean()
                self.accelerator.backward(loss)
                self.accelerator.clip_grad_norm_(self.model.parameters(), CLIP)
                self.optimizer.step()
                self.scheduler.step()
                self.optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def values(self) -> dict[str, Any]:
        """Return copies of what a checkpoint carries over, the parts of this rank included."""
        inner = self.model.optimizer
        flats = getattr(inner, "fp32_partitioned_groups_flat", None) or inner.single_partition_of_fp32_groups
        states = [torch.as_tensor(one) for flat in flats for one in inner.optimizer.state[flat].values()]
        gathered, weights = import_module("deepspeed").zero.GatheredParameters, []
        for parameter in self.model.module.parameters():
            with gathered([parameter], enabled=hasattr(parameter, "ds_id")):
                weights.append(parameter.detach().clone())
        return {
            "values": [one.detach().clone() for one in (*flats, *states)],
            "weights": weights,
            "rates": [group["lr"] for group in inner.param_groups],
            "counts": [
                self.scheduler.state_dict()["last_epoch"],
                self.model.global_steps,
                self.model.skipped_steps,
            ],
        }


def losses_of(peer: str, stage: int) -> None:
    with (
        patch.object(sys, "path", [*sys.path, peer]),
        patch.dict("os.environ", ACCELERATE_USE_DEEPSPEED="true"),
    ):
        theirs, ours = (
            Run(package, stage, gradient_accumulation_steps=ACCUMULATE).train()
            for package in ("accelerate", "accel")
        )
    assert ours == theirs


def carry_over(peer: str, saver: str, loader: str, stage: int, folder: str) -> None:
    with (
        patch.object(sys, "path", [*sys.path, peer]),
        patch.dict("os.environ", ACCELERATE_USE_DEEPSPEED="true"),
    ):
        run = Run(saver, stage, gamma=0.5)
        run.train(3)
        random.seed(7)
        np.random.seed(7)
        run.accelerator.save_state(folder)
        saved, draws = run.values(), (random.random(), np.random.rand(), torch.rand(2).tolist())
        other = Run(loader, stage, seed=9, gamma=0.5)
        other.train(1)
        other.accelerator.load_state(folder, **({"strict": False} if loader == "accel" else {}))
        torch.testing.assert_close(other.values(), saved, rtol=0, atol=0)
        if saver == "accel" and os.environ["RANK"] == "0":
            assert (random.random(), np.random.rand(), torch.rand(2).tolist()) == draws
        other.accelerator.wait_for_everyone()


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_losses_are_those_of_accelerate(world, stage):
    world(2).run(losses_of, os.environ["ACCEL_TEST_PEER_FOLDER"], stage)


@pytest.mark.parametrize(("saver", "loader"), [("accelerate", "accel"), ("accel", "accelerate")])
@pytest.mark.parametrize("stage", [2, 3])
def test_everything_carries_over(world, tmp_path, saver, loader, stage):
    world(2).run(
        carry_over, os.environ["ACCEL_TEST_PEER_FOLDER"], saver, loader, stage, str(tmp_path / "saved")
    )
