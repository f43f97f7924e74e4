"""Train, save and load with either package under DeepSpeed: `deepspeed_either_package.py FOLDER PEER`, on two ranks.

PEER is the folder that Accelerate is installed in.

The losses of a script that both run are in FOLDER/PACKAGE-losses.RANK. What a checkpoint held is in
FOLDER/SAVER-STAGE-save.RANK, and what the other package had after loading it in FOLDER/SAVER-STAGE-load.RANK.

On CPUs Accelerate's `Accelerator` takes each rank of DeepSpeed for the only one. So the script separates the ranks
itself, the schedule does not change the rate while losses are compared, and Accelerate's files of random states, which
both ranks write under one name, are not.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

STAGES = (1, 2, 3)
NUM_BATCHES, ACCUMULATE, CLIP = 12, 3, 0.5


def begin(package, stage, **options):
    """Return a new `Accelerator` of ``package``, whose earlier ones are forgotten."""
    for name in ("accel", "accelerate"):
        state = importlib.import_module(f"{name}.state")
        state.AcceleratorState._reset_state()
        state.GradientState._reset_state()
    module = importlib.import_module(package)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": CLIP,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
    }
    plugin = module.DeepSpeedPlugin(hf_ds_config=config, zero3_init_flag=False)
    return module.Accelerator(deepspeed_plugin=plugin, **options)


def prepared(accelerator, seed, *, gamma=1.0):
    torch.manual_seed(seed)
    # Two ranks divide the sizes: what fills a part up belongs to no checkpoint.
    model = nn.Sequential(nn.Linear(7, 34), nn.Tanh(), nn.Linear(34, 6))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma)
    return accelerator.prepare(model, optimizer, scheduler)


def train(accelerator, model, optimizer, scheduler, num_batches=NUM_BATCHES):
    """Return the loss of each batch of this rank."""
    rows = torch.randn(64, 4, 7, generator=torch.Generator().manual_seed(5))
    losses = []
    for number in range(num_batches):
        with accelerator.accumulate(model):
            loss = model(rows[2 * number + int(os.environ["RANK"])]).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def held(accelerator, model, optimizer, scheduler):
    """Return what a checkpoint carries over, the parts of this rank and random numbers included."""
    inner = model.optimizer
    flats = getattr(inner, "fp32_partitioned_groups_flat", None) or inner.single_partition_of_fp32_groups
    states = [inner.optimizer.state[flat] for flat in flats]
    return {
        "values": [flat.tolist() for flat in flats],
        "states": [{name: torch.as_tensor(value).tolist() for name, value in one.items()} for one in states],
        "weights": [values.tolist() for values in whole(model)],
        "rates": [group["lr"] for group in inner.param_groups],
        "scheduler": scheduler.state_dict()["last_epoch"],
        "steps": [model.global_steps, model.skipped_steps],
        "draws": [random.random(), float(np.random.rand()), torch.rand(2).tolist()],
    }


def whole(engine):
    deepspeed = importlib.import_module("deepspeed")
    for parameter in engine.module.parameters():
        with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
            yield parameter.detach().clone()


def carry_over(folder, saver, loader, stage):
    """Save with one package and load with the other."""
    rank = int(os.environ["RANK"])
    place = folder / f"{saver}-{stage}"
    for package, action in ((saver, "save"), (loader, "load")):
        accelerator = begin(package, stage)
        run = prepared(accelerator, seed=1 if action == "save" else 9, gamma=0.5)
        train(accelerator, *run, num_batches=3 if action == "save" else 1)
        if action == "save":
            random.seed(rank)
            np.random.seed(rank)
            accelerator.save_state(str(place))
        elif package == "accel":
            accelerator.load_state(str(place), strict=False)  # there is no manifest
        else:
            accelerator.load_state(str(place))
        (folder / f"{saver}-{stage}-{action}.{rank}").write_text(json.dumps(held(accelerator, *run)))
        accelerator.wait_for_everyone()


def main():
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    sys.path.append(sys.argv[2])
    for package in ("accelerate", "accel"):
        losses = {}
        for stage in STAGES:
            accelerator = begin(package, stage, gradient_accumulation_steps=ACCUMULATE)
            losses[stage] = train(accelerator, *prepared(accelerator, seed=1))
        (folder / f"{package}-losses.{rank}").write_text(json.dumps(losses))
    for saver, loader in (("accelerate", "accel"), ("accel", "accelerate")):
        for stage in (2, 3):
            carry_over(folder, saver, loader, stage)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
