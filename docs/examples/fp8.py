"""Train in FP8 with torchao; `--precision bf16` is the same run in bf16, to compare.

    pip install torchao scikit-learn
    python docs/examples/fp8.py                                               # on a CPU, too
    python docs/examples/fp8.py --precision bf16
    accel launch --num_processes 2 docs/examples/fp8.py --recipe rowwise

The inner layers are replaced by FP8 layers; the accelerator logs which ones, and why other layers are not.
Weights stay fp32, so the checkpoint is that of the plain model.
"""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import AORecipeKwargs, set_seed


def network(width: int = 128) -> nn.Sequential:
    """Return a network from ``(batch, 64)`` to ``(batch, 10)`` scores; sizes are multiples of 16."""
    return nn.Sequential(
        *(nn.Linear(64, width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
        *(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 10)),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train in FP8.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="fp8")
    parser.add_argument(
        "--recipe", choices=["tensorwise", "rowwise", "rowwise_with_gw_hp"], default="rowwise"
    )
    args = parser.parse_args()

    handlers = [AORecipeKwargs(config=args.recipe)] if args.precision == "fp8" else []  # accel
    accelerator = Accelerator(mixed_precision=args.precision, kwargs_handlers=handlers)
    set_seed(0)
    scans = load_digits()
    images, labels = torch.tensor(scans.data, dtype=torch.float32) / 16, torch.tensor(scans.target)
    loader = DataLoader(
        TensorDataset(images[360:], labels[360:]), batch_size=16, shuffle=True, drop_last=True
    )
    test = DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=16)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
    for epoch in range(args.epochs):
        total = torch.zeros((), device=accelerator.device)
        for rows, truth in loader:
            loss = nn.functional.cross_entropy(model(rows), truth)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.detach()
        mean_loss = accelerator.reduce(total / len(loader), "mean").item()
        accelerator.print(f"{args.precision}, epoch {epoch}: loss {mean_loss:.4f}")

    model.eval()
    right = seen = 0
    for rows, truth in test:
        with torch.no_grad():
            guesses = model(rows).argmax(1)
        guesses, truth = accelerator.gather_for_metrics((guesses, truth))
        right, seen = right + int((guesses == truth).sum()), seen + len(truth)
    accelerator.print(f"{args.precision}: {right} of {seen} right")
    network().load_state_dict(
        accelerator.get_state_dict(model)
    )  # plain PyTorch takes the weights as they are
    accelerator.end_training()


if __name__ == "__main__":
    main()
