"""Train a small model under DeepSpeed's ZeRO stage 3, interrupt it, and resume on another number of ranks.

    pip install deepspeed safetensors
    accel launch --cpu --num_processes 2 docs/examples/deepspeed_zero3.py --stop_after 30
    accel launch --cpu --num_processes 1 docs/examples/deepspeed_zero3.py               # resumes, on one rank
    python docs/examples/deepspeed_zero3.py --check                                     # plain PyTorch

Each rank writes its shards, in DeepSpeed's files. When the training is done, the weights are written to
`weights/model.safetensors`, one tensor at a time; no rank ever has the full model in memory.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator, DataLoaderConfiguration, DeepSpeedPlugin, ProjectConfiguration
from accel.utils import set_seed


def make_model() -> nn.Module:
    """Return a model that predicts the sign of the sum of eight numbers."""
    return nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 2))


def make_data(num_rows: int, *, seed: int) -> TensorDataset:
    """Return rows of eight numbers, and whether each sum is positive."""
    rows = torch.randn(num_rows, 8, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(rows, (rows.sum(dim=1) > 0).long())


def check(weights: Path) -> None:
    """Load the weights into a plain model, and print how often it is right."""
    model = make_model()
    model.load_state_dict(load_file(weights / "model.safetensors"))
    rows, labels = make_data(500, seed=1).tensors
    share = (model(rows).argmax(dim=1) == labels).float().mean().item()
    print(f"right in {share:.0%} of 500 new rows")


def train(args: argparse.Namespace) -> None:
    """Train until ``args.steps`` are done, or ``args.stop_after`` in this run."""
    accelerator = Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(zero_stage=3),
        dataloader_config=DataLoaderConfiguration(split_batches=True),  # the batch is that of all ranks
        project_config=ProjectConfiguration(
            str(args.project_dir), automatic_checkpoint_naming=True, total_limit=1
        ),
        scheduler_unit="optimizer_step",
    )
    set_seed(0)
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)
    loader = DataLoader(make_data(640, seed=0), batch_size=32, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    if accelerator.load_state(restore_loaders=True, missing_ok=True):  # the newest complete one, if any
        accelerator.print(f"resuming after step {scheduler.last_epoch}, on {accelerator.num_processes} ranks")

    stop_at = min(args.steps, scheduler.last_epoch + (args.stop_after or args.steps))
    while scheduler.last_epoch < stop_at:
        for rows, labels in loader:
            loss = F.cross_entropy(model(rows), labels)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            if scheduler.last_epoch % 5 == 0:
                mean = accelerator.reduce(loss.detach(), "mean").item()
                accelerator.print(f"step {scheduler.last_epoch}: loss {mean:.4f}")
            if scheduler.last_epoch == stop_at:
                accelerator.save_state()  # within the epoch, so that its position is saved
                break
    if stop_at == args.steps:
        accelerator.save_model(model, args.project_dir / "weights")
    accelerator.end_training()


def main() -> None:
    parser = argparse.ArgumentParser(description="Train under ZeRO stage 3.")
    parser.add_argument("--project_dir", type=Path, default=Path("runs/zero3"))
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--stop_after", type=int, help="save and leave after so many steps")
    parser.add_argument("--check", action="store_true", help="load the weights into plain PyTorch")
    args = parser.parse_args()
    if args.check:
        check(args.project_dir / "weights")
    else:
        train(args)


if __name__ == "__main__":
    main()
