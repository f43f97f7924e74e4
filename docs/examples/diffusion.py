"""A diffusion model that learns to draw a digit of your choice out of noise.

    pip install scikit-learn matplotlib
    python docs/examples/diffusion.py --picture runs/diffusion.png
    accel launch --cpu --num_processes 2 docs/examples/diffusion.py --picture runs/diffusion.png

Training adds noise to scans and lets a network guess it (Ho et al. 2020, https://arxiv.org/abs/2006.11239). An average
of the weights over time draws. It is saved with the rest, through `register_for_checkpointing`, and by
itself in `weights`. The processes share the drawing.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import gather_object, set_seed

NUM_LEVELS = 100


class Denoiser(nn.Module):
    """Predicts the noise in ``(batch, 64)`` images, given their noise levels and digits."""

    def __init__(self, width: int = 192) -> None:
        super().__init__()
        self.levels = nn.Embedding(NUM_LEVELS, width)
        self.digits = nn.Embedding(10, width)
        self.enter = nn.Linear(64, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
            for _ in range(3)
        )
        self.leave = nn.Linear(width, 64)

    def forward(self, images: torch.Tensor, levels: torch.Tensor, digits: torch.Tensor) -> torch.Tensor:
        states = self.enter(images)
        told = self.levels(levels) + self.digits(digits)
        for layer in self.layers:
            states = states + layer(states + told)
        return self.leave(states)


class Schedule:
    """How much of an image is left at each level of noise."""

    def __init__(self, device: torch.device) -> None:
        self.betas = torch.linspace(1e-3, 0.12, NUM_LEVELS, device=device)
        self.kept = torch.cumprod(1 - self.betas, dim=0)

    def add_noise(self, images: torch.Tensor, levels: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        kept = self.kept[levels].unsqueeze(1)
        return kept.sqrt() * images + (1 - kept).sqrt() * noise

    @torch.no_grad()
    def draw(self, model: nn.Module, digits: torch.Tensor) -> torch.Tensor:
        """Return ``(len(digits), 5, 64)``: images of these digits as noise, after each quarter, and at the end."""
        images = torch.randn(len(digits), 64, device=digits.device)
        stages = [images]
        for level in reversed(range(NUM_LEVELS)):
            guess = model(images, torch.full_like(digits, level), digits)
            beta, kept = self.betas[level], self.kept[level]
            images = (images - beta / (1 - kept).sqrt() * guess) / (1 - beta).sqrt()
            if level:
                images = images + beta.sqrt() * torch.randn_like(images)
            if level % 25 == 0:
                stages.append(images)
        return torch.stack(stages, dim=1)


def save_picture(images: torch.Tensor, picture: Path) -> None:
    """Draw ``(10, stages, 64)`` images: a column for each digit, a row for each stage."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(images.shape[1], 10, figsize=(8, 4.2), layout="constrained")
    for image, place in zip(images.transpose(0, 1).flatten(0, 1), axes.flat):
        place.imshow(image.view(8, 8), cmap="gray_r", vmin=-1, vmax=1)
        place.axis("off")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw digits out of noise.")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--batch_size", type=int, default=64, help="of each process")
    parser.add_argument("--output_dir", type=Path, default=Path("runs/diffusion"))
    parser.add_argument("--picture", type=Path, help="file for a picture of digits emerging from noise")
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0, device_specific=True)  # noise differs between ranks
    scans = load_digits()
    images = torch.tensor(scans.data, dtype=torch.float32) / 8 - 1
    loader = DataLoader(TensorDataset(images, torch.tensor(scans.target)), args.batch_size, shuffle=True)
    model = Denoiser()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    average = torch.optim.swa_utils.AveragedModel(
        accelerator.unwrap_model(model), multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.98)
    )
    accelerator.register_for_checkpointing(average)
    schedule = Schedule(accelerator.device)

    for epoch in range(args.epochs):
        total = torch.zeros((), device=accelerator.device)
        for clean, digits in loader:
            levels = torch.randint(NUM_LEVELS, (len(clean),), device=clean.device)
            noise = torch.randn_like(clean)
            guess = model(schedule.add_noise(clean, levels, noise), levels, digits)
            loss = nn.functional.mse_loss(guess, noise)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            average.update_parameters(accelerator.unwrap_model(model))
            total += loss.detach()
        if epoch % 20 == 19 or epoch == args.epochs - 1:
            mean_loss = accelerator.reduce(total / len(loader), "mean").item()
            accelerator.print(f"epoch {epoch + 1}: error of the guessed noise {mean_loss:.3f} (1 by chance)")

    accelerator.save_state(args.output_dir / "state")
    accelerator.save_model(average.module, args.output_dir / "weights")
    with accelerator.split_between_processes(list(range(10)) * 3) as mine:
        drawn = schedule.draw(average, torch.tensor(mine, device=accelerator.device))
    drawn = torch.stack(gather_object(list(drawn.cpu())))  # in order, though shares may differ in length
    if args.picture is not None and accelerator.is_main_process:
        save_picture(drawn[:10], args.picture)
    nearest = torch.cdist(drawn[:, -1], images).argmin(1)
    right = int((torch.tensor(scans.target)[nearest] == torch.arange(10).repeat(3)).sum())
    accelerator.print(f"{right} of 30 drawings are nearest to a scan of the requested digit")
    accelerator.end_training()


if __name__ == "__main__":
    main()
