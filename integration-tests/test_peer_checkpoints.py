"""Checkpoints of Accelerate load here, and ours load there, with the real package."""

from __future__ import annotations

import os
import random
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

pytestmark = pytest.mark.engine("long")


class Meter:
    """A custom object with a state."""

    def __init__(self) -> None:
        self.total, self.count = torch.zeros(3), 0

    def state_dict(self) -> dict[str, Any]:
        return vars(self)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        vars(self).update(state)


def accelerator_of(
    package: str, *, has_scaler: bool = False, is_stateful: bool = False, **options: Any
) -> Any:
    """Return a new Accelerator of a package; the earlier ones of both are forgotten."""
    import_module("accel_state.runtime").reset_runtime(keep_process_group=True)
    states = import_module("accelerate.state")
    states.AcceleratorState._reset_state(reset_partial_state=True)
    states.GradientState._reset_state()
    utils = import_module(f"{package}.utils")
    loaders = utils.DataLoaderConfiguration(use_stateful_dataloader=is_stateful)
    if has_scaler and package == "accel":
        options["mixed_precision"] = "fp16"
    accelerator = import_module(package).Accelerator(cpu=True, dataloader_config=loaders, **options)
    if has_scaler and package == "accelerate":
        accelerator.scaler = torch.amp.GradScaler("cpu")  # it makes none without a GPU
    return accelerator


def make_model(width: int, hidden: int) -> nn.Sequential:
    layers = [nn.Linear(width, hidden), nn.BatchNorm1d(hidden)]
    model = nn.Sequential(*layers, *(nn.Linear(hidden, hidden, bias=False) for _ in range(2)))
    model[3].weight = model[2].weight
    return model


def copied(value: Any) -> Any:
    """Return a copy of a nested state, with full tensors."""
    if isinstance(value, torch.Tensor):
        return (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
    if isinstance(value, dict):
        return {name: copied(inner) for name, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def work(package: str, action: str, folder: str, *, is_safe: bool) -> dict[str, Any]:
    """Save or load a run with ``package``; return everything that its checkpoint must carry over.

    A safe one is saved within a pass over a loader, the other has a gradient scaler.
    """
    accelerator = accelerator_of(package, has_scaler=not is_safe, is_stateful=is_safe)
    torch.manual_seed(0 if action == "save" else 99)
    model, other = make_model(4, 6), nn.Linear(6, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    second = torch.optim.SGD(other.parameters(), 0.1, 0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=50)
    data = TensorDataset(torch.arange(96.0).reshape(24, 4) / 96)
    loaders = DataLoader(data, batch_size=4, shuffle=True), DataLoader(data, batch_size=4)
    model, other, optimizer, second, scheduler, loader, ordered = accelerator.prepare(
        model, other, optimizer, second, scheduler, *loaders
    )
    meter, rest = Meter(), ordered
    accelerator.register_for_checkpointing(meter)
    if action == "save":
        random.seed(accelerator.process_index)
        np.random.seed(accelerator.process_index)
        for (batch,) in loader:
            accelerator.backward(other(model(batch)).square().mean())
            for one in (optimizer, second, scheduler):
                one.step()
            optimizer.zero_grad()
            second.zero_grad()
            meter.total, meter.count = meter.total + 1, meter.count + 1
        if is_safe:
            rest = iter(ordered)
            next(rest)
        else:
            state = accelerator.scaler.state_dict()
            accelerator.scaler.load_state_dict({**state, "scale": 48.0, "_growth_tracker": 5})
        accelerator.save_state(folder, safe_serialization=is_safe)
    else:
        accelerator.load_state(folder)
    found = {
        "model": accelerator.unwrap_model(model).state_dict(),
        "states": [
            one.state_dict() for one in (accelerator.unwrap_model(other), optimizer, second, scheduler)
        ],
        "meter": meter.state_dict(),
        "scaler": None if is_safe else accelerator.scaler.state_dict(),
        "draws": [random.random(), float(np.random.rand()), torch.rand(2)],
        "rest": [batch for (batch,) in rest] if is_safe else None,
    }
    if accelerator.process_index > 0:  # the buffers are the main process's, here and there
        found["model"] = {name: value for name, value in found["model"].items() if "running" not in name}
        del found["meter"]
    return copied(found)


def carry_over(saver: str, loader: str, folder: str, is_safe: bool) -> None:
    with patch.dict("os.environ"):
        if os.environ["WORLD_SIZE"] == "1":
            del os.environ["LOCAL_RANK"]  # by which Accelerate wants a group
        saved = work(saver, "save", folder, is_safe=is_safe)
        loaded = work(loader, "load", folder, is_safe=is_safe)
    torch.testing.assert_close(loaded, saved, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("saver", "loader"), [("accelerate", "accel"), ("accel", "accelerate")])
@pytest.mark.parametrize(("num_ranks", "is_safe"), [(1, False), (1, True), (2, True)])
def test_everything_carries_over(world, tmp_path, saver, loader, num_ranks, is_safe):
    world(num_ranks).run(carry_over, saver, loader, str(tmp_path / "saved"), is_safe)


def of_peer(action: str, folder: str, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """Call the functions for files of sharded models, which work on CPUs if they are told that training does."""
    peer, tools = import_module("accelerate"), import_module("accelerate.utils")
    accelerator = accelerator_of("accelerate")
    if action == "save":
        accelerator.save_state(folder)  # the states of the random generators
    plugin = peer.FullyShardedDataParallelPlugin(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT")
    accelerator.state.distributed_type, accelerator.state.fsdp_plugin = tools.DistributedType.FSDP, plugin
    getattr(tools, f"{action}_fsdp_model")(plugin, accelerator, model, folder)
    getattr(tools, f"{action}_fsdp_optimizer")(plugin, accelerator, optimizer, model, folder)
    return model, optimizer


def of_ours(action: str, folder: str, model: Any, optimizer: Any) -> tuple[Any, Any]:
    plugin = import_module("accel").FullyShardedDataParallelPlugin(fsdp_version=2)
    accelerator = accelerator_of("accel", fsdp_plugin=plugin)
    model, optimizer = accelerator.prepare(model, optimizer)
    if action == "save":
        accelerator.save_state(folder)
    else:
        accelerator.load_state(folder, strict=Path(folder, "accel_checkpoint.json").exists())
    return model, optimizer


def of_torch(action: str, folder: str, model: Any, optimizer: Any) -> tuple[Any, Any]:
    model_state, optimizer_state = get_model_state_dict(model), get_optimizer_state_dict(model, optimizer)
    if action == "save":
        accelerator_of("accelerate").save_state(folder)  # the states of the random generators
    parts = {"pytorch_model_fsdp_0": {"model": model_state}, "optimizer_0": {"optimizer": optimizer_state}}
    for name, state in parts.items():
        (dcp.save if action == "save" else dcp.load)(state, checkpoint_id=f"{folder}/{name}")
    if action == "load":
        set_model_state_dict(model, model_state)
        set_optimizer_state_dict(model, optimizer, optimizer_state)
    return model, optimizer


PACKAGES = {"accelerate": of_peer, "accel": of_ours, "torch": of_torch}


def carry_shards_over(saver: str, loader: str, folder: str) -> None:
    found = []
    with patch.dict("os.environ"):
        for seed, package, action in ((1, saver, "save"), (2, loader, "load")):
            torch.manual_seed(seed)
            model = fully_shard(make_model(7, 33))
            groups = [
                {"params": [*model[0].parameters()], "lr": 0.02},
                {"params": [*model[1].parameters(), model[2].weight]},
            ]
            optimizer = torch.optim.AdamW(groups, lr=0.01)
            for _ in range(3 - seed):
                model(torch.randn(4, 7)).square().mean().backward()
                optimizer.step()
            model, optimizer = PACKAGES[package](action, folder, model, optimizer)
            found.append(copied({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    torch.testing.assert_close(*found, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("saver", "loader"),
    [("accelerate", "accel"), ("accel", "accelerate"), ("torch", "accel"), ("accel", "torch")],
)
def test_shards_carry_over(world, tmp_path, saver, loader):
    world(2).run(carry_shards_over, saver, loader, str(tmp_path))
