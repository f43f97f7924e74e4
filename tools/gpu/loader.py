"""Samples per second from workers and pinned memory into a small convolutional model."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tools.gpu.measuring import LIBRARIES, Bench, Row, ratio

Batch = tuple[torch.Tensor, torch.Tensor]


class Images(Dataset[Batch]):
    """Random images in memory."""

    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(256, (count, 3, 64, 64), dtype=torch.uint8, generator=generator)
        self.labels = torch.randint(10, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.images[index], self.labels[index]


def one_ahead(batches: Any, device: torch.device) -> Iterator[Batch]:
    """Yield batches on the device, each copied while the one before is computed."""
    waiting: Batch | None = None
    for images, labels in batches:
        moved = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        if waiting is not None:
            yield waiting
        waiting = moved
    if waiting is not None:
        yield waiting


class Reader:
    """Model, optimizer and batches of one library."""

    def __init__(self, bench: Bench, data: Images, library: str) -> None:
        torch.manual_seed(0)
        self.model: Any = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
        ).to(bench.device)  # fmt: skip
        self.optimizer: Any = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        loader: Any = DataLoader(
            data, batch_size=256 if bench.is_cuda else 32, num_workers=8 if bench.is_cuda else 2,
            pin_memory=bench.is_cuda, persistent_workers=True, drop_last=True,
        )  # fmt: skip
        self.bench = bench
        self.backward: Callable[[torch.Tensor], object] = torch.Tensor.backward
        self.batches: Callable[[], Iterator[Batch]] = lambda: one_ahead(loader, bench.device)
        if library != "plain":
            settings = importlib.import_module(f"{library}.utils").DataLoaderConfiguration(non_blocking=True)
            accelerator = bench.accelerator(library, dataloader_config=settings)
            self.model, self.optimizer, own = accelerator.prepare(self.model, self.optimizer, loader)
            self.backward, self.batches = accelerator.backward, lambda: iter(own)

    def samples_per_s(self) -> float:
        """Return the speed of one epoch."""
        count, seconds = self.bench.clocked(self._epoch)
        return float(count / seconds)

    def _epoch(self) -> int:
        count = 0
        for images, labels in self.batches():
            count += len(labels)
            loss = nn.functional.cross_entropy(self.model(images.float() / 255), labels)
            self.backward(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return count


def loader(bench: Bench) -> None:
    """Put one row; plain copies one batch ahead from pinned memory."""
    data = Images(49_152 if bench.is_cuda and not bench.is_small else 128)
    readers = {library: Reader(bench, data, library) for library in LIBRARIES}
    speeds: dict[str, list[float]] = {library: [] for library in readers}
    for number in range(4 if bench.is_cuda else 2):
        for library in list(readers)[:: 1 if number % 2 else -1]:
            speeds[library].append(readers[library].samples_per_s())
    row = Row("8 workers, pinned memory, a small convolutional model", "samples/s", "≥ 0.98 of plain")
    row.figures = {library: round(max(each[1:])) for library, each in speeds.items()}
    if bench.has_goals and ratio(row.figures["accel"], row.figures["plain"]) < 0.98:
        row.wrong.append(f"{ratio(row.figures['accel'], row.figures['plain'])} of plain")
    bench.put(row)
