"""The smallest training task: a line through noisy points."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset


class RegressionDataset(Dataset[dict[str, Any]]):
    """Points ``y = a * x + b`` with noise, as dicts of two numbers."""

    def __init__(self, a: float = 2, b: float = 3, length: int = 64, seed: int | None = None) -> None:
        random = np.random.default_rng(seed)
        self.length = length
        self.x = random.normal(size=(length,)).astype(np.float32)
        self.y = a * self.x + b + random.normal(scale=0.1, size=(length,)).astype(np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "y": self.y[index]}


class RegressionModel(torch.nn.Module):
    """``a * x + b``, printing the number formats at the first batch.

    Args:
        a: The first value of the slope.
        b: The first value of the intercept.
        double_output: Has no effect.
    """

    def __init__(self, a: float = 0, b: float = 0, double_output: bool = False) -> None:
        super().__init__()
        self.a = torch.nn.Parameter(torch.tensor(a).float())
        self.b = torch.nn.Parameter(torch.tensor(b).float())
        self.first_batch = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values of the line at ``x``, of any shape, on the parameters' device."""
        if self.first_batch:
            sys.stdout.write(f"Model dtype: {self.a.dtype}, {self.b.dtype}. Input dtype: {x.dtype}\n")
            self.first_batch = False
        return x * self.a + self.b
