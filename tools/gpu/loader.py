"""Samples per second from workers and pinned memory into a small convolutional model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tools.gpu.measuring import LIBRARIES, Bench


def one_ahead(batches: Any, device: torch.device) -> Iterator[Any]:
    """Yield batches on the device, each copied while the one before is computed."""
    waiting = None
    for batch in batches:
        moved = [each.to(device, non_blocking=True) for each in batch]
        if waiting is not None:
            yield waiting
        waiting = moved
    yield waiting


def epoch_of(bench: Bench, data: TensorDataset, library: str) -> Callable[[], int]:
    """Return a function that trains for one epoch and returns how many samples that were."""
    layers = [nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU()]
    model: Any = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)).to(
        bench.device
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1e-3)
    size, workers = (256, 8) if bench.is_cuda else (32, 2)
    options: Any = {"pin_memory": bench.is_cuda, "persistent_workers": True, "drop_last": True}
    loader: Any = DataLoader(data, size, num_workers=workers, **options)
    backward: Any = torch.Tensor.backward
    if library != "plain":
        settings = importlib.import_module(f"{library}.utils").DataLoaderConfiguration(non_blocking=True)
        accelerator = bench.accelerator(library, dataloader_config=settings)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        backward = accelerator.backward

    def epoch() -> int:
        count = 0
        for images, labels in one_ahead(loader, bench.device) if library == "plain" else loader:
            count += len(labels)
            backward(nn.functional.cross_entropy(model(images.float() / 255), labels))
            optimizer.step()
            optimizer.zero_grad()
        return count

    return epoch


def loader(bench: Bench) -> None:
    """Put one row; plain copies one batch ahead from pinned memory, by hand."""
    count = 49_152 if bench.has_goals else 128
    images = torch.randint(256, (count, 3, 64, 64), dtype=torch.uint8)
    data = TensorDataset(images, torch.randint(10, (count,)))
    epochs = {library: epoch_of(bench, data, library) for library in LIBRARIES}
    best: dict[str, float] = dict.fromkeys(LIBRARIES, 0)
    for number in range(4 if bench.is_cuda else 2):
        for library in LIBRARIES[:: 1 if number % 2 else -1]:
            samples, seconds = bench.clocked(epochs[library])
            best[library] = max(round(samples / seconds), best[library]) if number else 0  # workers start
    row = "8 workers, pinned memory, a small convolutional model"
    bench.put(row, "samples/s", "≥ 0.98 of plain", best, plain=0.98)
