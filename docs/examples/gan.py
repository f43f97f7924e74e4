"""Two models that train against each other: a generator learns to draw digits that a critic takes for scans.

    pip install scikit-learn matplotlib
    python docs/examples/gan.py
    accel launch --cpu --num_processes 2 docs/examples/gan.py --picture runs/gan.png

Each model has an optimizer. In the generator's turn gradients flow through the critic; the critic's parameters
are left out, so that nothing of them is sent.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accel import Accelerator
from accel.utils import set_seed

NOISE = 16


def networks() -> tuple[nn.Sequential, nn.Sequential]:
    """Return a generator from ``(batch, 16)`` to ``(batch, 64)`` and a critic from there to ``(batch, 1)``."""
    generator = nn.Sequential(
        *(nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU()),
        *(nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU()),
        *(nn.Linear(128, 64), nn.Sigmoid()),
    )
    critic = nn.Sequential(
        *(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.LeakyReLU(0.2)), nn.Linear(64, 1)
    )
    return generator, critic


def draw(images: torch.Tensor, picture: Path) -> None:
    """Draw ``(rows, columns, 64)`` images."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows, columns, _ = images.shape
    figure, axes = plt.subplots(rows, columns, figsize=(8, 0.7 * rows), layout="constrained", squeeze=False)
    for image, place in zip(images.flatten(0, 1), axes.flat):
        place.imshow(image.view(8, 8).cpu(), cmap="gray_r", vmin=0, vmax=1)
        place.axis("off")
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description="Learn to draw digits.")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch_size", type=int, default=32, help="of each process")
    parser.add_argument(
        "--picture", type=Path, help="where to draw what the generator makes, a row every ten epochs"
    )
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0, device_specific=True)  # noise differs between ranks; `prepare` makes weights the same
    images = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    loader = DataLoader(TensorDataset(images), args.batch_size, shuffle=True, drop_last=True)
    generator, critic = networks()
    draws = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    judges = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))
    generator, critic, draws, judges, loader = accelerator.prepare(generator, critic, draws, judges, loader)
    score = nn.functional.binary_cross_entropy_with_logits
    same_noise = torch.randn(12, NOISE, device=accelerator.device)
    with torch.no_grad():
        progress = [generator(same_noise)]  # before training, and every ten epochs

    for epoch in range(args.epochs):
        for (scans,) in loader:
            noise = torch.randn(len(scans), NOISE, device=accelerator.device)
            with torch.no_grad():
                drawn = generator(noise)
            scores = critic(torch.cat([scans, drawn]))
            truth = torch.cat([torch.full_like(scans[:, :1], 0.9), torch.zeros_like(drawn[:, :1])])
            accelerator.backward(score(scores, truth))
            judges.step()
            judges.zero_grad()

            critic.requires_grad_(False)  # accel: nothing of the critic is averaged in this turn
            scores = accelerator.unwrap_model(critic)(generator(noise))
            accelerator.backward(score(scores, torch.ones_like(scores)))
            draws.step()
            draws.zero_grad()
            critic.requires_grad_(True)
        if epoch % 10 == 9:
            with torch.no_grad():
                drawn = generator(torch.randn(256, NOISE, device=accelerator.device))
            mean = accelerator.reduce(drawn.mean(0), "mean").cpu()
            error = (mean - images.mean(0)).abs().mean().item()
            accelerator.print(f"epoch {epoch + 1}: the mean digit is off by {error:.3f} of 1")
            with torch.no_grad():
                progress.append(generator(same_noise))

    if args.picture is not None and accelerator.is_main_process:
        draw(torch.stack(progress), args.picture)
    accelerator.end_training()


if __name__ == "__main__":
    main()
