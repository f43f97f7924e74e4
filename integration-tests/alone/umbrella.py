"""The training loop of the package `accel`, which brings all the others.

accel launch --cpu --num_processes 2 umbrella.py FOLDER
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import set_seed

folder = Path(sys.argv[1])
accelerator = Accelerator(cpu=True, log_with="jsonl", project_dir=folder, gradient_accumulation_steps=2)
accelerator.init_trackers("loop", config={"lr": 0.1})
set_seed(0)
inputs = torch.randn(70, 4)
data = TensorDataset(inputs, inputs.sum(dim=1, keepdim=True))
model = nn.Linear(4, 1)
loader = DataLoader(data, batch_size=8 // accelerator.num_processes, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
losses = []
for epoch in range(5):
    for rows, targets in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    losses.append(accelerator.reduce(loss.detach(), "mean").item())
    accelerator.log({"loss": losses[-1]}, step=epoch)
assert losses[-1] < 0.1 * losses[0], losses
seen = [accelerator.gather_for_metrics(rows) for rows, _ in loader]
assert sum(map(len, seen)) == 70
accelerator.save_state(folder / "state")
accelerator.load_state(folder / "state")
accelerator.end_training()
if accelerator.is_main_process:
    assert len((folder / "loop" / "metrics.jsonl").read_text().splitlines()) >= 5
    print(f"trained on {accelerator.num_processes}")
