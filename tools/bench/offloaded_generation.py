"""How fast a model generates of which only a part fits where it runs; what `bigmodel_gpu` measures.

The same code runs on an accelerator, where the rest waits in the memory of the host, and on a CPU, where it waits
on disk.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

SHARE = 4
"""The model is this many times as large as the memory it is given."""


@dataclass(frozen=True)
class Setting:
    """What is run, and where."""

    device: str
    width: int
    num_layers: int
    num_tokens: int
    dtype: torch.dtype

    @property
    def model_bytes(self) -> int:
        """Bytes of the weights of all layers."""
        return self.num_layers * self.width**2 * self.dtype.itemsize

    def limits(self) -> dict[int | str, int]:
        """Return the memory for weights: a share of the model where it runs, and enough below."""
        share = self.model_bytes // SHARE
        return {"cpu": share} if self.device == "cpu" else {0: share, "cpu": 2 * self.model_bytes}


ON_GPU = Setting("cuda", width=8192, num_layers=64, num_tokens=8, dtype=torch.bfloat16)


class Layers(nn.Module):
    """Layers through which every token passes, one after the other, as in a language model."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Linear(setting.width, setting.width, bias=False, dtype=setting.dtype)
            for _ in range(setting.num_layers)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return ``x`` of shape ``(1, width)``, changed by every layer."""
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def write_checkpoint(setting: Setting, folder: Path) -> None:
    """Write random weights to ``folder``, once."""
    if not (folder / "done").exists():
        torch.manual_seed(0)
        save: Callable[..., Any] = import_module("accel_bigmodel").save_model
        save(Layers(setting), folder)
        (folder / "done").touch()


def offloaded(package: str, setting: Setting, checkpoint: Path, folder: Path) -> nn.Module:
    """Return the model with no more of it on the device than `Setting.limits` allows."""
    offered = import_module(package)
    with offered.init_empty_weights():
        model = Layers(setting)
    device_map = offered.infer_auto_device_map(model, setting.limits())
    dispatched: nn.Module = offered.load_checkpoint_and_dispatch(
        model, checkpoint, device_map=device_map, offload_folder=folder
    )
    return dispatched


def resident(setting: Setting, checkpoint: Path) -> nn.Module:
    """Return the model as a whole on the device."""
    model = Layers(setting)
    import_module("accel_bigmodel").load_checkpoint_in_model(model, checkpoint)
    return model.to(setting.device)


def tokens_per_s(model: nn.Module, setting: Setting) -> float:
    """Return how many tokens, one after the other, the model makes in a second."""
    x = torch.ones(1, setting.width, dtype=setting.dtype, device=setting.device)
    with torch.inference_mode():
        for _ in range(2):  # the order of the layers is learned
            x = model(x)
        _wait_for(setting.device)
        begun = time.perf_counter()
        for _ in range(setting.num_tokens):
            x = model(x)
        _wait_for(setting.device)
    return setting.num_tokens / (time.perf_counter() - begun)


def bus_tokens_per_s(setting: Setting, *, num_copies: int = 8) -> float:
    """Return how many tokens a second the bus allows, if all that does not fit crosses it for each token."""
    layer = torch.empty(setting.width, setting.width, dtype=setting.dtype)
    source = layer if setting.device == "cpu" else layer.pin_memory()
    target = torch.empty_like(layer, device=setting.device)
    target.copy_(source)
    _wait_for(setting.device)
    begun = time.perf_counter()
    for _ in range(num_copies):
        target.copy_(source, non_blocking=True)
    _wait_for(setting.device)
    bytes_per_s = num_copies * layer.nbytes / (time.perf_counter() - begun)
    return bytes_per_s / (setting.model_bytes * (SHARE - 1) / SHARE)


def measured(variant: str, setting: Setting, checkpoint: Path) -> float:
    """Return the tokens per second of ``bus``, ``resident`` or a package that offloads."""
    if variant == "bus":
        return bus_tokens_per_s(setting)
    write_checkpoint(setting, checkpoint)
    if variant == "resident":
        return tokens_per_s(resident(setting, checkpoint), setting)
    with tempfile.TemporaryDirectory() as folder:
        return tokens_per_s(offloaded(variant, setting, checkpoint, Path(folder)), setting)


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.get_device_module(device).synchronize()
