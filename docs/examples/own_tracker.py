"""A custom tracker next to a built-in one, and early stopping that all ranks agree on.

    accel launch --cpu --num_processes 2 docs/examples/own_tracker.py

The tracker keeps the best value of each metric in `best.json`; the built-in one writes every value as a line of JSON.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.tracking import GeneralTracker, on_main_process
from accel.utils import set_seed


class BestTracker(GeneralTracker):
    """Keeps the smallest value of each metric in a JSON file."""

    name = "best"
    requires_logging_directory = False

    @on_main_process
    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.best: dict[str, Any] = {}

    @property
    def tracker(self) -> dict[str, Any]:
        return self.best

    @on_main_process
    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.best["config"] = values

    @on_main_process
    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        for name, value in values.items():
            if value < self.best.get(name, (float("inf"), None))[0]:
                self.best[name] = (value, step)

    @on_main_process
    def finish(self) -> None:
        self.file.write_text(json.dumps(self.best))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with a custom tracker, and stop early.")
    parser.add_argument("--project_dir", type=Path, default=Path("runs/own_tracker"))
    args = parser.parse_args()
    args.project_dir.mkdir(parents=True, exist_ok=True)

    trackers = [BestTracker(args.project_dir / "best.json"), "jsonl"]
    accelerator = Accelerator(log_with=trackers, project_dir=args.project_dir)
    accelerator.init_trackers("own_tracker", config={"rate": 0.1})
    set_seed(0)
    inputs = torch.linspace(-1, 1, 64).unsqueeze(1)
    loader = DataLoader(TensorDataset(inputs, 3 * inputs), batch_size=8)
    model = nn.Linear(1, 1)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    for epoch in range(200):
        for rows, targets in loader:
            loss = nn.functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.log({"loss": loss}, step=epoch)
        if loss < 1e-3:  # each rank has a different loss
            accelerator.set_trigger()
        if accelerator.check_trigger():  # accel: true on every rank if on any
            break
    accelerator.print("stopped after epoch", epoch)
    accelerator.end_training()
    if accelerator.is_main_process:
        print(f"{trackers[0].file.name}: {trackers[0].file.read_text()}")


if __name__ == "__main__":
    main()
