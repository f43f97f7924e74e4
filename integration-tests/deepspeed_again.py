"""Trains with DeepSpeed three times in one process, each an `Accelerator` after the last one's `end_training`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel import Accelerator, DeepSpeedPlugin


def train(stage: int) -> dict[str, Any]:
    config = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": {"stage": stage}}
    accelerator = Accelerator(cpu=True, deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=config))
    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    accelerator.backward(model(torch.full((2, 4), 1.0 + accelerator.process_index)).square().mean())
    optimizer.step()
    state = dict(accelerator.get_state_dict(model))
    accelerator.end_training()
    return {"rank": accelerator.process_index, "state": state}


def main() -> None:
    runs = [train(stage) for stage in (1, 3, 1)]
    torch.save([run["state"] for run in runs], Path(sys.argv[1]) / f"{runs[0]['rank']}.pt")


if __name__ == "__main__":
    main()
