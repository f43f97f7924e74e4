"""Stop when the held-out loss no longer falls, on all ranks at the same step, and keep the best weights.

    python docs/examples/early_stopping.py
    accel launch --cpu --num_processes 2 docs/examples/early_stopping.py --patience 5

The loss is gathered over all ranks, so that all of them stop for the same reason.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import set_seed


class Patience:
    """Counts evaluations without a better value. Registered for checkpoints, so a resumed run continues the count."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.best = float("inf")
        self.num_worse = 0

    def is_better(self, value: float) -> bool:
        """Take note of a value; return whether it is the best so far."""
        better = value < self.best
        self.best = min(self.best, value)
        self.num_worse = 0 if better else self.num_worse + 1
        return better

    @property
    def is_over(self) -> bool:
        return self.num_worse >= self.limit

    def state_dict(self) -> dict[str, float]:
        return {"best": self.best, "num_worse": self.num_worse}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.best, self.num_worse = state["best"], int(state["num_worse"])


def samples(count: int, seed: int) -> TensorDataset:
    """Return noisy samples of a curve: few enough for a large network to learn them by heart."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count, 1, generator=generator) * 6 - 3
    return TensorDataset(x, x.sin() + 0.3 * torch.randn(count, 1, generator=generator))


def main() -> None:
    parser = argparse.ArgumentParser(description="Stop early.")
    parser.add_argument("--most_epochs", type=int, default=200)
    parser.add_argument("--patience", type=int, default=10, help="epochs without a better held-out loss")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/early_stopping"))
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    model = nn.Sequential(nn.Linear(1, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(samples(32, seed=0), batch_size=8, shuffle=True)
    test = DataLoader(samples(101, seed=1), batch_size=16)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
    patience = Patience(args.patience)
    accelerator.register_for_checkpointing(patience)
    num_epochs = 0
    while num_epochs < args.most_epochs:
        model.train()
        total = torch.zeros((), device=accelerator.device)
        for x, y in loader:
            training_loss = nn.functional.mse_loss(model(x), y)
            accelerator.backward(training_loss)
            optimizer.step()
            optimizer.zero_grad()
            total += training_loss.detach()
        num_epochs += 1
        model.eval()
        errors = []
        for x, y in test:
            with torch.no_grad():
                errors.append(accelerator.gather_for_metrics((model(x) - y).square()))
        loss = torch.cat(errors).mean().item()  # over all 101 samples, the same on every rank
        mean = accelerator.reduce(total / len(loader), "mean").item()
        accelerator.print(f"epoch {num_epochs}: loss {mean:.4f}, held out {loss:.4f}")
        if patience.is_better(loss):
            accelerator.save_model(model, args.output_dir / "best")
        if patience.is_over:
            # The loss is the same here. Where ranks may differ, such as by time or free memory:
            accelerator.set_trigger()
        if accelerator.check_trigger():  # accel: true on every rank if on any
            break
    accelerator.print(f"stopped after {num_epochs} epochs: best {patience.best:.4f}, now {loss:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
