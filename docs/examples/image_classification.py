"""Classify scans of handwritten digits with every feature of a training script, each enabled by a flag.

    pip install scikit-learn tensorboard
    python docs/examples/image_classification.py                                  everything off
    accel launch --cpu --num_processes 2 docs/examples/image_classification.py \\
        --mixed_precision bf16 --gradient_accumulation_steps 2 --clip_norm 1 --label_smoothing 0.1 \\
        --checkpointing_steps epoch --with_tracking --compile
    python docs/examples/image_classification.py --resume_from runs/images/epoch_1

A run that is resumed with the same flags ends with the weights of one that was not stopped, bit for bit; with
`--num_workers` only from the end of an epoch, because workers shift images at random and restart.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset

from accel import Accelerator
from accel.utils import DistributedDataParallelKwargs, TorchDynamoPlugin, set_seed


class Scans(Dataset):
    """Scans of digits as ``(1, 8, 8)`` in 0…1 and their labels; moved by up to one pixel where ``moves``."""

    def __init__(self, part: slice, *, moves: bool) -> None:
        scans = load_digits()
        order = torch.randperm(len(scans.target), generator=torch.Generator().manual_seed(0))[part]
        self.images = torch.tensor(scans.images, dtype=torch.float32).unsqueeze(1)[order] / 16
        self.labels = torch.tensor(scans.target)[order]
        self.moves = moves

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = self.images[index]
        if self.moves:
            image = image.roll(tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(1, 2))
        return image, self.labels[index]


class Block(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()),
            *(nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(images + self.layers(images))


def network(width: int = 24) -> nn.Sequential:
    """Return a small residual network from ``(batch, 1, 8, 8)`` to ``(batch, 10)`` scores."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1), Block(width), nn.MaxPool2d(2), Block(width),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10),
    )  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Classify digits, with every feature off or on.")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32, help="of each process")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mixed_precision", choices=["no", "fp16", "bf16"])
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--clip_norm", type=float, help="largest norm of the gradients")
    parser.add_argument("--label_smoothing", type=float, default=0.0)
    parser.add_argument("--freeze_stem", action="store_true", help="freeze the first layer")
    parser.add_argument("--compile", action="store_true", help="compile the model with torch.compile")
    parser.add_argument("--num_workers", type=int, default=0, help="processes that read data")
    parser.add_argument("--checkpointing_steps", help="save after every so many steps, or after each `epoch`")
    parser.add_argument("--resume_from", type=Path, help="a checkpoint of an earlier run")
    parser.add_argument("--with_tracking", action="store_true", help="log to TensorBoard")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/images"))
    args = parser.parse_args()
    if args.checkpointing_steps not in (None, "epoch"):
        if not args.checkpointing_steps.isdecimal() or int(args.checkpointing_steps) == 0:
            parser.error("`--checkpointing_steps` must be a number from 1 up, or `epoch`")
        args.checkpointing_steps = int(args.checkpointing_steps)
    return args


def evaluate(accelerator: Accelerator, model: nn.Module, loader: DataLoader) -> float:
    """Return the accuracy on the held-out scans."""
    model.eval()
    right = seen = 0
    for images, labels in loader:
        with torch.no_grad():
            guesses = model(images).argmax(dim=1)
        guesses, labels = accelerator.gather_for_metrics((guesses, labels))
        right, seen = right + int((guesses == labels).sum()), seen + len(labels)
    model.train()
    return right / seen


def main() -> None:
    args = arguments()
    accelerator = Accelerator(
        mixed_precision=args.mixed_precision,
        gradient_accumulation_steps=args.gradient_accumulation_steps,
        log_with="tensorboard" if args.with_tracking else None,
        project_dir=args.output_dir,
        scheduler_unit="optimizer_step",
        dynamo_plugin=TorchDynamoPlugin(backend="inductor") if args.compile else None,
        kwargs_handlers=[DistributedDataParallelKwargs(gradient_as_bucket_view=True)],
    )
    if args.with_tracking:
        accelerator.init_trackers("images", config={"lr": args.lr, "batch_size": args.batch_size})
    set_seed(args.seed)

    loader = DataLoader(
        Scans(slice(360, None), moves=True), args.batch_size, shuffle=True, num_workers=args.num_workers
    )
    test = DataLoader(Scans(slice(360), moves=False), args.batch_size)
    model = network()
    model[0].requires_grad_(not args.freeze_stem)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=args.lr)
    model, optimizer, loader, test = accelerator.prepare(model, optimizer, loader, test)
    steps = args.epochs * -(-len(loader) // args.gradient_accumulation_steps)
    scheduler = accelerator.prepare(
        torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=steps)
    )
    if args.resume_from is not None:
        accelerator.load_state(args.resume_from, restore_loaders=True)
        accelerator.print(
            f"resuming from {args.resume_from}: epoch {loader.iteration}, step {scheduler.last_epoch}"
        )

    loss_function = nn.CrossEntropyLoss(label_smoothing=args.label_smoothing)
    while loader.iteration < args.epochs:
        epoch = loader.iteration
        for images, labels in loader:
            with accelerator.accumulate(model):
                loss = loss_function(model(images), labels)
                accelerator.backward(loss)
                if args.clip_norm is not None and accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), args.clip_norm)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerator.sync_gradients:
                continue
            step = scheduler.last_epoch  # optimizer steps so far, also those before a resume
            if isinstance(args.checkpointing_steps, int) and step % args.checkpointing_steps == 0:
                accelerator.save_state(args.output_dir / f"step_{step}")
            if args.with_tracking:
                accelerator.log({"loss": loss, "lr": scheduler.get_last_lr()[0]}, step=step)
        accuracy = evaluate(accelerator, model, test)
        accelerator.print(f"epoch {epoch}: accuracy {accuracy:.4f}")
        if args.with_tracking:
            accelerator.log({"accuracy": accuracy}, step=scheduler.last_epoch)
        if args.checkpointing_steps == "epoch":
            accelerator.save_state(args.output_dir / f"epoch_{epoch}")
    accelerator.save_model(model, args.output_dir / "weights")
    accelerator.end_training()


if __name__ == "__main__":
    main()
