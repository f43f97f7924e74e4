"""Train with the strategy of the package next to this file, and compare with one process that sees all batches.

    pip install .
    accel launch --cpu --num_processes 2 train.py

On one process and on two the weights must end up the same, up to rounding.
"""

import copy

import torch
from delayed_averaging import DelayedAveragingPlugin
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import set_seed


def main() -> None:
    accelerator = Accelerator(
        strategy_plugin=DelayedAveragingPlugin(), gradient_accumulation_steps=2
    )  # accel: found by its entry point
    set_seed(0)
    inputs = torch.randn(64, 4, dtype=torch.float64)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    alone = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8 // accelerator.num_processes)  # 16 rows in a step
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    ours = []
    for rows, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        ours.append(accelerator.reduce(loss.detach(), "mean").item())

    steps = torch.optim.SGD(alone.parameters(), lr=0.1)
    for step, (rows, targets) in enumerate(DataLoader(data, batch_size=16)):
        loss = nn.functional.mse_loss(alone(rows), targets)
        mean = sum(ours[2 * step : 2 * step + 2]) / 2
        accelerator.print(f"step {step}: loss {mean:.6f}, on one process {loss.item():.6f}")
        loss.backward()
        steps.step()
        steps.zero_grad()
    pairs = zip(accelerator.unwrap_model(model).parameters(), alone.parameters(), strict=True)
    apart = max((weight.cpu() - other).abs().max().item() for weight, other in pairs)
    accelerator.print(f"`{accelerator.strategy.name}` and one process differ by {apart:.1e}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
