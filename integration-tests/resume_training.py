"""Train a small model with everything that draws random numbers or keeps a state, from one step to another.

`python resume_training.py OUT --steps 40` trains unbroken; `--stop 20 --save DIR` saves after 20 steps and ends;
`--load DIR` continues from there. OUT gets the losses from the first step of this process on, and the final weights.
"""

import argparse
import json
import random

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator, DataLoaderConfiguration
from accel_ops import set_seed


class Noisy(Dataset):
    """Samples that follow from the index only."""

    def __len__(self):
        return 52

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=generator), torch.tensor(index % 3)


class Meter:
    """A custom object with a state: the losses so far."""

    def __init__(self):
        self.losses = []

    def state_dict(self):
        return {"losses": torch.tensor(self.losses, dtype=torch.float64)}

    def load_state_dict(self, state):
        self.losses = state["losses"].tolist()


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--stop", type=int)
    parser.add_argument("--save")
    parser.add_argument("--load")
    parser.add_argument("--precision", default="no")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--seedable", action="store_true")
    parser.add_argument("--behind", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    accelerator = Accelerator(
        cpu=True,
        mixed_precision=options.precision,
        gradient_accumulation_steps=options.accumulate,
        dataloader_config=DataLoaderConfiguration(use_seedable_sampler=options.seedable),
    )
    set_seed(3 if options.load is None else 99)  # what is loaded must not depend on it
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=200)
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=options.workers)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    meter = Meter()
    accelerator.register_for_checkpointing(meter)
    if options.load is not None:
        accelerator.load_state(options.load, verify=True, restore_loaders=True)
    last = options.stop or options.steps
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
            if len(meter.losses) == options.stop and options.save:
                handle = accelerator.save_state(options.save, blocking=not options.behind)
                if options.behind:
                    with torch.no_grad():
                        [parameter.zero_() for parameter in model.parameters()]
                    handle.wait()
            if len(meter.losses) == last:
                break
    weights = {name: value.tolist() for name, value in accelerator.get_state_dict(model).items()}
    result = {"losses": meter.losses, "weights": weights, "rate": scheduler.get_last_lr()}
    with open(f"{options.out}.{accelerator.process_index}", "w") as file:
        json.dump(result, file)
    accelerator.end_training()


if __name__ == "__main__":
    main()
