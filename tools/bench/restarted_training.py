"""What `tools.bench.restarts` trains: ``restarted_training.py FOLDER NUM_WORKERS``, until it is ended.

Rank 0 writes a line per step to ``FOLDER/steps``: the time, the number of the attempt, the step, the loss. Each rank
writes its process to ``FOLDER/rank_N``.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, ProjectConfiguration

folder, num_workers = Path(sys.argv[1]), int(sys.argv[2])
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
(folder / f"rank_{os.environ['RANK']}").write_text(str(os.getpid()))
torch.set_num_threads(1)
torch.manual_seed(0)
accelerator = Accelerator(
    cpu=True,
    project_config=ProjectConfiguration(
        project_dir=str(folder), automatic_checkpoint_naming=True, total_limit=2
    ),
)
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(8)))
data = TensorDataset(torch.randn(4096, 512))
loader = DataLoader(data, batch_size=32, shuffle=True, num_workers=num_workers)
model, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), loader)


class Count:
    """The steps made, as a part of checkpoints."""

    steps = 0

    def state_dict(self) -> dict[str, int]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.steps = state["steps"]


count = Count()
accelerator.register_for_checkpointing(count)
accelerator.load_state(missing_ok=True, restore_loaders=True)
with (folder / "steps").open("a", buffering=1) as steps:
    while True:
        for (batch,) in loader:
            loss = (model(batch) - batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            count.steps += 1
            if accelerator.is_main_process:
                steps.write(f"{time.time():.3f} {attempt} {count.steps} {loss.item()!r}\n")
            if count.steps % 20 == 0:
                accelerator.save_state(blocking=False)
