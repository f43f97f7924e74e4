"""Save every N steps and after every epoch, and resume from any of these checkpoints.

    accel launch --cpu --num_processes 2 docs/examples/checkpointing.py
    python docs/examples/checkpointing.py --stop_after 30          # stops in the middle of an epoch
    python docs/examples/checkpointing.py --resume                 # resumes from the newest checkpoint
    python docs/examples/checkpointing.py --resume epoch_1         # or with a certain one

The final weights equal those of an uninterrupted run, bit for bit: `restore_loaders=True` puts the loader
into the middle of its epoch, and the checkpoint has the rest of the state.
"""

import argparse
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import set_seed


class Progress:
    """Progress of the run: a custom object in the checkpoint."""

    def __init__(self) -> None:
        self.step = 0

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def newest(folder: Path) -> Path:
    """Return the checkpoint that was written last; each is complete, for it appears by one rename."""
    found = sorted(folder.glob("*_*"), key=lambda path: path.stat().st_mtime_ns)
    if not found:
        raise SystemExit(f"there is no checkpoint in `{folder}`")
    return found[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description="Save and resume.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save_every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--stop_after", type=int, help="end the run after so many steps")
    parser.add_argument(
        "--resume", nargs="?", const="newest", help="name of a checkpoint; the newest if none"
    )
    parser.add_argument("--output_dir", type=Path, default=Path("runs/checkpointing"))
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    inputs = torch.randn(320, 8)
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=8, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    progress = Progress()
    accelerator.register_for_checkpointing(progress)
    if args.resume is not None:
        found = newest(args.output_dir) if args.resume == "newest" else args.output_dir / args.resume
        accelerator.load_state(found, restore_loaders=True)  # accel
        accelerator.print(f"resuming from {found.name}, step {progress.step}, epoch {loader.iteration}")

    while loader.iteration < args.epochs:
        epoch = loader.iteration
        for rows, targets in loader:
            loss = nn.functional.mse_loss(model(rows), targets)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            progress.step += 1
            if progress.step % args.save_every == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.print(f"step {progress.step}: loss {mean:.4f}")
                accelerator.save_state(args.output_dir / f"step_{progress.step}")
            if progress.step == args.stop_after:
                accelerator.print(f"stopping after step {progress.step}")
                accelerator.end_training()
                return
        accelerator.save_state(args.output_dir / f"epoch_{epoch}")  # after the loop, so the epoch is complete
    weights = torch.cat([weight.flatten() for weight in accelerator.unwrap_model(model).parameters()])
    accelerator.print(f"step {progress.step}: sum of the weights {weights.double().sum().item():.17g}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
