"""Prints the public attributes of objects of a package, accel or accelerate, that can be assigned, as JSON by class.

Usage: attributes.py PACKAGE FOLDER
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

CPU = torch.device("cpu")
PLAIN = """
    AORecipeKwargs AutocastKwargs DataLoaderConfiguration DeepSpeedPlugin DeepSpeedSequenceParallelConfig
    DistributedDataParallelKwargs FullyShardedDataParallelPlugin GradScalerKwargs GradientAccumulationPlugin
    InitProcessGroupKwargs MegatronLMPlugin ProfileKwargs ProjectConfiguration TorchContextParallelConfig
    TorchDynamoPlugin TorchTensorParallelConfig
"""
"""Classes of `utils` that need no arguments."""


class Stream(IterableDataset[torch.Tensor]):
    """A stream of four rows."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(4, 2))


def objects(package: str, folder: str) -> list[Any]:
    """Return one object of each class that scripts hold."""
    accel = import_module(package)
    data, hooks, offload, state, utils = (
        import_module(f"{package}.{name}")
        for name in ("data_loader", "hooks", "utils.offload", "state", "utils")
    )
    accelerator = accel.Accelerator(cpu=True)
    model, batches = nn.Linear(2, 2), BatchSampler(SequentialSampler(range(4)), 2, drop_last=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    prepared = accelerator.prepare(model, optimizer, scheduler, DataLoader(torch.ones(4, 2)))
    offload.offload_state_dict(folder, {"weight": torch.ones(2)})
    streams = {"dispatch_batches": True, "put_on_device": True, "device": CPU}
    plain = [getattr(utils, name)() for name in PLAIN.split()]
    return [
        accelerator,
        *prepared[1:],
        data.prepare_data_loader(DataLoader(Stream()), **streams),
        data.SkipDataLoader(torch.ones(4, 2)),
        data.SkipBatchSampler(batches, 1),
        data.BatchSamplerShard(batches, 2, 0),
        data.IterableDatasetShard(Stream(), 2),
        data.SeedableRandomSampler(range(4)),
        state.AcceleratorState(),
        state.PartialState(),
        state.GradientState(),
        hooks.AlignDevicesHook(execution_device=CPU),
        hooks.CpuOffload("cpu"),
        hooks.ModelHook(),
        hooks.SequentialHook(hooks.ModelHook()),
        hooks.UserCpuOffloadHook(model, hooks.CpuOffload("cpu")),
        import_module(f"{package}.local_sgd").LocalSGD(accelerator, model, 2),
        offload.OffloadedWeightsLoader(save_folder=folder),
        offload.PrefixedDataset({"a.b": 1}, "a."),
        import_module(f"{package}.tracking").TensorBoardTracker("run", logging_dir=folder),
        import_module(f"{package}.logging").get_logger("name"),
        accel.ParallelismConfig() if hasattr(accel, "ParallelismConfig") else utils.ParallelismConfig(),
        *plain,
    ]


def assignable(one: Any) -> list[str]:
    """Return the public attributes that take back their value; methods are none."""
    found = []
    for name in {*dir(one), *getattr(one, "__dict__", {})}:
        try:
            value = getattr(one, name)
            if name.startswith("_") or (callable(value) and name not in vars(one)):
                continue
            setattr(one, name, value)
        except (AttributeError, TypeError, ValueError, RuntimeError):
            continue
        found.append(name)
    return sorted(found)


def main() -> None:
    """Try and print."""
    made = objects(*sys.argv[1:])
    print(json.dumps({type(one).__name__: assignable(one) for one in made}))


if __name__ == "__main__":
    main()
