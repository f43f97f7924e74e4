"""A run that survives losing its machine: it saves and exits on a signal, and resumes when started again.

    accel launch --cpu --num_processes 2 docs/examples/preemption.py
    kill -TERM <any of the ranks>         # saves, ends with exit code 75
    accel launch --cpu --num_processes 2 docs/examples/preemption.py

`--stop_at N` sends the signal to the last rank after N steps, for a demonstration.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, ProjectConfiguration
from accel.utils import set_seed


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, be preempted, resume.")
    parser.add_argument("--project_dir", type=Path, default=Path("runs/preemption"))
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop_at", type=int, help="send SIGTERM to the last rank after so many steps")
    parser.add_argument("--step_s", type=float, default=0.0, help="pretend that a step takes so long")
    args = parser.parse_args()
    args.project_dir.mkdir(parents=True, exist_ok=True)

    project = ProjectConfiguration(str(args.project_dir), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(project_config=project, scheduler_unit="optimizer_step")
    set_seed(0)
    inputs = torch.randn(256, 4)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.99)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=4, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    if accelerator.load_state(
        restore_loaders=True, missing_ok=True
    ):  # the newest, in the middle of its epoch
        accelerator.print("resuming in epoch", loader.iteration)

    steps = 0
    with accelerator.handle_preemption(
        grace_period_s=60
    ):  # accel: leaves with exit code 75 if all agreed to stop
        while loader.iteration < args.epochs and not accelerator.should_stop:
            for rows, targets in loader:
                loss = nn.functional.mse_loss(model(rows), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                steps += 1
                if scheduler.last_epoch % 8 == 0:
                    mean = accelerator.reduce(loss.detach(), "mean").item()
                    accelerator.print(f"step {scheduler.last_epoch}: loss {mean:.4f}")
                time.sleep(args.step_s)
                if steps == args.stop_at and accelerator.is_last_process:
                    os.kill(os.getpid(), signal.SIGTERM)
                if accelerator.should_stop:  # accel: the same step on every rank
                    accelerator.print("saved to", accelerator.save_state())
                    break

    if accelerator.is_main_process:
        weights = accelerator.unwrap_model(model).weight.flatten().tolist()
        facts = {"weights": weights, "rate": scheduler.get_last_lr()[0]}
        (args.project_dir / "result.json").write_text(json.dumps(facts))
    accelerator.end_training()


if __name__ == "__main__":
    main()
