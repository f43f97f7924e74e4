"""Train a small convolutional network on 1,797 scans of handwritten digits.

A plain training loop; the lines marked `accel` are all that it needs to run on any number of processes:

    pip install scikit-learn tensorboard matplotlib tqdm
    accel launch --num_processes 2 docs/examples/digits.py      two processes on this machine
    python docs/examples/digits.py --mixed_precision bf16       one process
    torchrun --nproc_per_node 2 docs/examples/digits.py         another launcher
"""

import argparse
import json
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import ProjectConfiguration, set_seed, tqdm


def digits() -> tuple[TensorDataset, TensorDataset]:
    """Return 1,437 training and 360 held-out scans, each ``(1, 8, 8)`` in 0…1, with their labels."""
    scans = load_digits()
    images = torch.tensor(scans.images, dtype=torch.get_default_dtype()).unsqueeze(1) / 16
    labels = torch.tensor(scans.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    train, test = order[360:], order[:360]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def network() -> nn.Sequential:
    """Return a convolutional network from ``(batch, 1, 8, 8)`` to ``(batch, 10)`` scores."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(128, 10)),
    )


def evaluate(model: nn.Module, loader: DataLoader, accelerator: Accelerator) -> tuple[int, int]:
    """Return how many held-out scans are labeled correctly, and how many there are."""
    model.eval()
    right = seen = 0
    for images, labels in loader:
        with torch.no_grad():
            guesses = model(images).argmax(dim=1)
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))  # accel: every sample once
        right, seen = right + int((guesses == labels).sum()), seen + len(labels)
    model.train()
    return right, seen


def draw(history: dict[str, list[float]], picture: Path) -> None:
    """Draw loss and accuracy against epochs."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    epochs = range(1, len(history["loss"]) + 1)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    left.plot(epochs, history["loss"], marker="o", markersize=3, color="tab:blue")
    left.set(title="training loss", xlabel="epoch", yscale="log")
    right.plot(epochs, history["accuracy"], marker="o", markersize=3, color="tab:green")
    right.set(
        title=f"held-out accuracy, at the end {history['accuracy'][-1]:.3f}", xlabel="epoch", ylim=(0, 1.02)
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a classifier of handwritten digits.")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=32, help="of all processes together")
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"], help="default: the launcher's")
    parser.add_argument("--double", action="store_true", help="compute in 64 bits")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/digits"))
    args = parser.parse_args()

    accelerator = Accelerator(  # accel
        mixed_precision=args.mixed_precision,
        log_with="tensorboard",
        project_config=ProjectConfiguration(str(args.output_dir), logging_dir=str(args.output_dir / "logs")),
        scheduler_unit="optimizer_step",
    )
    accelerator.init_trackers("digits", config={"epochs": args.epochs, "batch_size": args.batch_size})
    set_seed(0)
    torch.set_default_dtype(torch.float64 if args.double else torch.float32)

    train, test = digits()
    per_process = max(1, args.batch_size // accelerator.num_processes)
    train_loader = DataLoader(train, batch_size=per_process, shuffle=True, drop_last=True)
    test_loader = DataLoader(test, batch_size=per_process)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = args.epochs * (len(train_loader) // accelerator.num_processes)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)

    model, optimizer, scheduler, train_loader, test_loader = accelerator.prepare(  # accel
        model, optimizer, scheduler, train_loader, test_loader
    )
    history: dict[str, list[float]] = {"loss": [], "accuracy": []}
    with tqdm(total=args.epochs * len(train_loader), desc="training", unit="step") as bar:
        for epoch in range(args.epochs):
            total = torch.zeros((), device=accelerator.device)
            for images, labels in train_loader:
                loss = F.cross_entropy(model(images), labels)
                accelerator.backward(loss)  # accel
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                total += loss.detach()
                bar.update()
            right, seen = evaluate(model, test_loader, accelerator)
            mean_loss = accelerator.reduce(total / len(train_loader), "mean").item()
            accelerator.log({"loss": mean_loss, "accuracy": right / seen}, step=epoch + 1)
            history["loss"].append(mean_loss)
            history["accuracy"].append(right / seen)
            bar.set_postfix(loss=f"{mean_loss:.4f}", accuracy=f"{right / seen:.3f}")

    accelerator.save_model(model, args.output_dir)
    if accelerator.is_main_process:
        draw(history, args.output_dir / "curves.png")
        facts = {"processes": accelerator.num_processes, "precision": accelerator.mixed_precision}
        facts["device"] = accelerator.device.type
        result = {"right": right, "seen": seen, **facts, **history}
        (args.output_dir / "result.json").write_text(json.dumps(result, indent=2))
    accelerator.print(f"{right} of {seen} held-out scans right: accuracy {right / seen:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
