"""Cross-validation: one model for each fold, and the mean of their scores on a test set.

    pip install scikit-learn
    python docs/examples/cross_validation.py
    accel launch --cpu --num_processes 2 docs/examples/cross_validation.py --num_folds 5

`accelerator.free_memory` lets go of a fold's model before the next one is made.
"""

import argparse

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import StratifiedKFold
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset, TensorDataset

from accel import Accelerator
from accel.utils import set_seed


def wines() -> tuple[TensorDataset, TensorDataset]:
    """Return 142 wines to train on and 36 to test with: ``(13,)`` measurements and the grape, 0 to 2."""
    table = load_wine()
    values = torch.tensor(table.data, dtype=torch.float32)
    values = (values - values.mean(0)) / values.std(0)
    labels = torch.tensor(table.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = [TensorDataset(values[part], labels[part]) for part in (order[36:], order[:36])]
    return parts[0], parts[1]


def scores_of(
    model: nn.Module, loader: DataLoader, accelerator: Accelerator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the scores of all rows, in the order of the data set on every rank, and their labels."""
    model.eval()
    scores, labels = [], []
    for values, truth in loader:
        with torch.no_grad():
            both = accelerator.gather_for_metrics((model(values), truth))
        scores.append(both[0])
        labels.append(both[1])
    return torch.cat(scores).cpu(), torch.cat(labels).cpu()


def train_fold(accelerator: Accelerator, train: Dataset, held_out: Dataset, test: Dataset, epochs: int):
    """Return the accuracy of one fold, the scores of the test set, and its labels."""
    model = nn.Sequential(nn.Linear(13, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loaders = [DataLoader(part, batch_size=8, shuffle=part is train) for part in (train, held_out, test)]
    model, optimizer, loader, held_out_loader, test_loader = accelerator.prepare(model, optimizer, *loaders)
    for _ in range(epochs):
        model.train()
        for values, labels in loader:
            accelerator.backward(nn.functional.cross_entropy(model(values), labels))
            optimizer.step()
            optimizer.zero_grad()
    guesses, truth = scores_of(model, held_out_loader, accelerator)
    accuracy = (guesses.argmax(1) == truth).float().mean().item()
    scores, labels = scores_of(model, test_loader, accelerator)
    accelerator.free_memory(model, optimizer, loader, held_out_loader, test_loader)  # accel
    return accuracy, scores, labels


def main() -> None:
    parser = argparse.ArgumentParser(description="Cross-validate a classifier of wines.")
    parser.add_argument("--num_folds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    accelerator = Accelerator()
    set_seed(0)
    train, test = wines()
    folds = StratifiedKFold(args.num_folds, shuffle=True, random_state=0).split(*train.tensors)
    totals = torch.zeros(len(test), 3)
    for number, (rows, others) in enumerate(folds):
        parts = (Subset(train, rows.tolist()), Subset(train, others.tolist()))
        accuracy, scores, labels = train_fold(accelerator, *parts, test, args.epochs)
        totals += scores.softmax(1)
        accelerator.print(f"fold {number}: {len(others)} held out, accuracy {accuracy:.3f}")
    right = int((totals.argmax(1) == labels).sum())
    accelerator.print(f"all folds together: {right} of {len(labels)} wines of the test set right")
    accelerator.end_training()


if __name__ == "__main__":
    main()
