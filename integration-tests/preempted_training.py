"""Train, and leave in good order when asked to; to be sent signals at any moment.

Each rank gets the options of `train` as JSON. `PROJECT/ready-RANK` appears when it can be asked; `PROJECT/result-RANK`
gets its losses and weights when it has made all its steps.
"""

import json
import random
import time
from pathlib import Path

import torch
from preloaded import run_with_options
from resume_training import Meter, Noisy
from torch import nn
from torch.utils.data import DataLoader

from accel import Accelerator, ProjectConfiguration
from accel_ops import set_seed


def train(*, project, steps, pace_s, behind):
    project = Path(project)
    folders = ProjectConfiguration(project_dir=str(project), automatic_checkpoint_naming=True, total_limit=1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, project_config=folders)
    rank = accelerator.process_index
    with accelerator.handle_preemption():
        (project / f"ready-{rank}").touch()
        set_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.3), nn.Linear(16, 3))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
        loader = DataLoader(Noisy(), batch_size=4, shuffle=True)
        model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
        meter = Meter()
        accelerator.register_for_checkpointing(meter)
        if (project / "checkpoints").is_dir():
            accelerator.load_state(verify=True)
        while len(meter.losses) < steps and not accelerator.should_stop:
            for inputs, labels in loader:
                with accelerator.accumulate(model):
                    loss = nn.functional.cross_entropy(model(inputs) + random.random() * 1e-2, labels)
                    accelerator.backward(loss)
                    optimizer.step()
                    scheduler.step()
                    optimizer.zero_grad()
                meter.losses.append(loss.item())
                time.sleep(pace_s)
                if accelerator.should_stop:
                    accelerator.save_state(blocking=not behind)
                if accelerator.should_stop or len(meter.losses) == steps:
                    break
    weights = {name: value.tolist() for name, value in accelerator.get_state_dict(model).items()}
    own_losses = meter.losses if rank == 0 else None  # a custom object's state is the main process's
    (project / f"result-{rank}").write_text(json.dumps({"losses": own_losses, "weights": weights}))
    accelerator.end_training()


if __name__ == "__main__":
    run_with_options(train)
