"""Train without a learning-rate schedule, with an optimizer that has a mode for training and one for evaluation.

    pip install schedulefree scikit-learn
    python docs/examples/schedule_free.py
    accel launch --cpu --num_processes 2 docs/examples/schedule_free.py

Schedule-free AdamW (Defazio et al. 2024, https://arxiv.org/abs/2405.15682) evaluates an average of the weights. A
prepared optimizer hands `train()` and `eval()` on. Save in the mode of evaluation, which has the better weights.
"""

import argparse

import torch
from schedulefree import AdamWScheduleFree
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

from accel import Accelerator
from accel.utils import set_seed


def main() -> None:
    parser = argparse.ArgumentParser(description="Train without a schedule.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch_size", type=int, default=32, help="of each process")
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    scans = load_digits()
    data = TensorDataset(torch.tensor(scans.data, dtype=torch.float32) / 16, torch.tensor(scans.target))
    train, test = random_split(data, [1437, 360])
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = AdamWScheduleFree(model.parameters(), lr=1e-2, warmup_steps=20)
    model, optimizer, loader, test_loader = accelerator.prepare(
        model, optimizer, DataLoader(train, args.batch_size, shuffle=True), DataLoader(test, args.batch_size)
    )
    for epoch in range(args.epochs):
        model.train()
        optimizer.train()  # accel
        for images, labels in loader:
            accelerator.backward(nn.functional.cross_entropy(model(images), labels))
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        optimizer.eval()  # accel
        right = seen = 0
        for images, labels in test_loader:
            with torch.no_grad():
                guesses = model(images).argmax(1)
            guesses, labels = accelerator.gather_for_metrics((guesses, labels))
            right, seen = right + int((guesses == labels).sum()), seen + len(labels)
        accelerator.print(f"epoch {epoch}: {right} of {seen} right")
    accelerator.end_training()


if __name__ == "__main__":
    main()
