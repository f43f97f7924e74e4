"""Save or load a run with either package: `python either_package.py accel|accelerate save|load FOLDER OUT`.

OUT gets, per rank, everything that a checkpoint must carry over, after saving or after loading.
"""

import importlib
import json
import random
import sys

import numpy as np
import torch
from torch import nn


class Meter:
    def __init__(self):
        self.total = torch.zeros(3)
        self.count = 0

    def state_dict(self):
        return {"total": self.total, "count": self.count}

    def load_state_dict(self, state):
        self.total, self.count = state["total"], state["count"]


def main():
    package, action, folder, out = sys.argv[1:5]
    accelerator = importlib.import_module(package).Accelerator(cpu=True)
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
    model, other, optimizer, second, scheduler, loader = accelerator.prepare(
        model, other, optimizer, second, scheduler, loader
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
        accelerator.save_state(folder, safe_serialization=sys.argv[5] == "safe")
    else:
        accelerator.load_state(folder)
    state = {
        "model": plain(accelerator.unwrap_model(model).state_dict()),
        "other": plain(accelerator.unwrap_model(other).state_dict()),
        "optimizer": plain(optimizer.state_dict()),
        "second": plain(second.state_dict()),
        "scheduler": plain(scheduler.state_dict()),
        "meter": plain(meter.state_dict()),
        "draws": [random.random(), float(np.random.rand()), torch.rand(2).tolist()],
    }
    if accelerator.process_index > 0:
        # The buffers are the main process's, here and there.
        state["model"] = {name: value for name, value in state["model"].items() if "running" not in name}
        state["meter"] = None
    with open(f"{out}.{accelerator.process_index}", "w") as file:
        json.dump(state, file)
    accelerator.end_training()


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    return value


if __name__ == "__main__":
    main()
