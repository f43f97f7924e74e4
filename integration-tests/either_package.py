"""Save a run with either package and load it with the other: `python either_package.py FOLDER OPTION…`.

Options: `safe` for safetensors; `scaler` for a gradient scaler; `position` to save within a pass over a loader.
What the checkpoint of a package must carry over is in FOLDER/PACKAGE-save.RANK as it was when it was saved, and in
FOLDER/PACKAGE-load.RANK as it was when the other package had loaded it.
"""

import importlib
import json
import os
import random
import sys

import numpy as np
import torch
from torch import nn
from torch.distributed.tensor import DTensor


class Meter:
    def __init__(self):
        self.total = torch.zeros(3)
        self.count = 0

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


def accelerator_of(package, options):
    module = importlib.import_module(package)
    loaders = importlib.import_module(f"{package}.utils").DataLoaderConfiguration(
        use_stateful_dataloader="position" in options
    )
    if package == "accel":
        precision = "fp16" if "scaler" in options else "no"
        return module.Accelerator(cpu=True, mixed_precision=precision, dataloader_config=loaders)
    accelerator = module.Accelerator(cpu=True, dataloader_config=loaders)
    if "scaler" in options:
        accelerator.scaler = torch.amp.GradScaler("cpu")  # it makes none without a GPU
    return accelerator


def work(package, action, folder, options):
    """Save or load a run with ``package``; return everything that its checkpoint must carry over."""
    accelerator = accelerator_of(package, options)
    torch.manual_seed(0 if action == "save" else 99)
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
    )
    model[3].weight = model[2].weight
    other = nn.Linear(6, 1)
    optimizer, second = (
        torch.optim.AdamW(model.parameters(), lr=0.01),
        torch.optim.SGD(other.parameters(), 0.1, 0.9),
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    data = torch.utils.data.TensorDataset(torch.arange(96.0).reshape(24, 4) / 96)
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    ordered = torch.utils.data.DataLoader(data, batch_size=4)
    model, other, optimizer, second, scheduler, loader, ordered = accelerator.prepare(
        model, other, optimizer, second, scheduler, loader, ordered
    )
    meter = Meter()
    accelerator.register_for_checkpointing(meter)
    if action == "save":
        random.seed(accelerator.process_index)
        np.random.seed(accelerator.process_index)
        for (batch,) in loader:
            accelerator.backward(other(model(batch)).pow(2).mean())
            for each in (optimizer, second, scheduler):
                each.step()
            optimizer.zero_grad()
            second.zero_grad()
            meter.total, meter.count = meter.total + 1, meter.count + 1
        if "scaler" in options:
            accelerator.scaler.load_state_dict(
                {**accelerator.scaler.state_dict(), "scale": 48.0, "_growth_tracker": 5}
            )
        rest = iter(ordered)
        if "position" in options:
            next(rest)
        accelerator.save_state(folder, safe_serialization="safe" in options)
    else:
        accelerator.load_state(folder)
        rest = ordered
    state = {
        "model": plain(accelerator.unwrap_model(model).state_dict()),
        "other": plain(accelerator.unwrap_model(other).state_dict()),
        "optimizer": plain(optimizer.state_dict()),
        "second": plain(second.state_dict()),
        "scheduler": plain(scheduler.state_dict()),
        "meter": plain(meter.state_dict()),
        "scaler": accelerator.scaler.state_dict() if "scaler" in options else None,
        "draws": [random.random(), float(np.random.rand()), torch.rand(2).tolist()],
    }
    if "position" in options:
        state["rest"] = [batch.tolist() for (batch,) in rest]
    if accelerator.process_index > 0:
        # The buffers are the main process's, here and there.
        state["model"] = {name: value for name, value in state["model"].items() if "running" not in name}
        state["meter"] = None
    return state


def plain(value):
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


def forget(package):
    """Make the next `Accelerator` of ``package`` begin again."""
    if package == "accel":
        importlib.import_module("accel_state.runtime").reset_runtime()
    else:
        state = importlib.import_module("accelerate.state")
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def main():
    folder, *options = sys.argv[1:]
    rank = int(os.environ.get("RANK", "0"))
    if "RANK" in os.environ:
        torch.distributed.init_process_group("gloo")  # both packages use it
    for saver, loader in (("accelerate", "accel"), ("accel", "accelerate")):
        for package, action in ((saver, "save"), (loader, "load")):
            state = work(package, action, f"{folder}/{saver}", options)
            with open(f"{folder}/{saver}-{action}.{rank}", "w") as file:
                json.dump(state, file)
            forget(package)
    if "RANK" in os.environ:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
