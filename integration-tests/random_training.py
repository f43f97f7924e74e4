"""A small training script with many settings, and all that it sees: for Accelerate and for accel alike.

``python random_training.py accel FOLDER`` runs the script with each of the settings in FOLDER/settings.json, and writes
what each run has seen to FOLDER/accel-RANK.json. The settings come from `test_random_configurations.py`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import itertools
import json
import os
import random
import sys
import warnings
from collections import UserDict, namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler
from torch.utils.data import WeightedRandomSampler as Weighted

Settings = dict[str, Any]
Pair = namedtuple("Pair", "ids outputs")


def features(index: int) -> dict[str, torch.Tensor]:
    """Return the row of an index."""
    value = torch.tensor([index, index * index % 7], dtype=torch.float32) / 10
    return {"x": value, "y": torch.tensor([index % 3 - 1.0]), "id": torch.tensor(index)}


class Rows(Dataset):
    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return features(index)


class Stream(IterableDataset):
    """The first rows, shared between workers as PyTorch requests."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (features(index) for index in range(first, self.size, step))


class Backwards(Sampler):
    """A sampler of the user's, with an order that changes with the epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return ((index + self.epoch) % self.size for index in reversed(range(self.size)))


class Paired(BatchSampler):
    """A batch sampler of the user's, which puts rows of both ends together."""

    def __init__(self, size: int, batch_size: int) -> None:
        order = [index // 2 if index % 2 == 0 else size - 1 - index // 2 for index in range(size)]
        super().__init__(order, batch_size, drop_last=False)


def loader(settings: Settings, size: int) -> DataLoader:
    """Return the data loader that a user builds."""
    rows = {"map": Rows, "stream": Stream}[settings["data"]](size)
    sampler, workers = settings["sampler"], {"num_workers": settings["num_workers"]}
    if sampler == "paired batches":
        return DataLoader(rows, batch_sampler=Paired(size, settings["batch_size"]), **workers)
    make = {
        "in order": lambda: None,
        "shuffled": lambda: None,
        "random": lambda: RandomSampler(rows),
        "random, generator": lambda: RandomSampler(rows, generator=torch.Generator().manual_seed(3)),
        "weighted": lambda: Weighted([1.0 + index for index in range(size)], size),
        "own": lambda: Backwards(size),
    }[sampler]
    sizes = {"batch_size": settings["batch_size"], "drop_last": settings["drop_last"]}
    return DataLoader(
        rows, sampler=make(), shuffle=True if sampler == "shuffled" else None, **sizes, **workers
    )


class Model(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(2, 4), nn.Linear(4, 1), nn.Dropout(dropout)
        with torch.no_grad():
            for number, parameter in enumerate(self.parameters()):
                values = torch.arange(parameter.numel()).sin() / (number + 2)
                parameter.copy_(values.view_as(parameter))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(torch.tanh(self.first(x))))


SCHEDULES = {
    "linear": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 2, gamma=0.5),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, T_max=7),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=3),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.ConstantLR(optimizer, 0.1, total_iters=2), lr_scheduler.ExponentialLR(optimizer, 0.9)],
        milestones=[2],
    ),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
}
METRICS = {
    "tensor": lambda ids, outputs: ids,
    "tuple": lambda ids, outputs: (ids, outputs),
    "nested": lambda ids, outputs: {"ids": ids, "more": [outputs, (ids * 2,)]},
    "named tuple": Pair,
    "user dict": lambda ids, outputs: UserDict(ids=ids, outputs=outputs),
    "bool": lambda ids, outputs: ids % 2 == 0,
    "objects": lambda ids, outputs: [f"row {number}" for number in ids.tolist()],
    "dicts": lambda ids, outputs: [{"id": number} for number in ids.tolist()],
}
"""What a script hands to `gather_for_metrics`."""


def plain(value: Any) -> Any:
    """Return a value as JSON that keeps the types of containers, shapes and dtypes."""
    if isinstance(value, torch.Tensor):
        numbers = value.detach().float().flatten().tolist()
        return [str(value.dtype), list(value.shape), [round(number, 5) for number in numbers]]
    if isinstance(value, (dict, UserDict)):
        return {type(value).__name__: {str(key): plain(item) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {type(value).__name__: [plain(item) for item in value]}
    if isinstance(value, float):
        return round(value, 5)
    return value if value is None or isinstance(value, (int, str, bool)) else repr(value)


class Script:
    """Trains as a user would, with one library, and notes by name what there is to see."""

    def __init__(self, settings: Settings, library: Any) -> None:
        self.settings, self.library, self.seen = settings, library, {}
        names = (
            "split_batches",
            "dispatch_batches",
            "even_batches",
            "use_seedable_sampler",
            "data_seed",
            "non_blocking",
        )
        loaders = {name: settings[name] for name in (*names, "use_stateful_dataloader")}
        steps = settings["accumulation"]
        if settings["plugin"]:
            options = {
                name: settings[name]
                for name in ("adjust_scheduler", "sync_with_dataloader", "sync_each_batch")
            }
            plugin = library.utils.GradientAccumulationPlugin(num_steps=steps, **options)
            accumulation: Settings = {"gradient_accumulation_plugin": plugin}
        else:
            accumulation = {"gradient_accumulation_steps": steps}
        self.accelerator = library.Accelerator(
            cpu=True,
            dataloader_config=library.DataLoaderConfiguration(**loaders),
            **{
                name: settings[name]
                for name in ("mixed_precision", "step_scheduler_with_optimizer", "device_placement")
            },
            **accumulation,
        )

    def note(self, name: str, value: Any) -> None:
        self.seen.setdefault(name, []).append(plain(value))

    def train(self) -> None:
        settings, accelerator = self.settings, self.accelerator
        self.model = Model(0.3 if settings["dropout"] else 0.0)
        optimizer = OPTIMIZERS[settings["optimizer"]](self.model.parameters())
        rates = SCHEDULES[settings["scheduler"]](optimizer) if settings["scheduler"] else None
        data = loader(settings, settings["rows"])
        self.model, self.optimizer, data = accelerator.prepare(self.model, optimizer, data)
        self.rates = rates and accelerator.prepare(rates)
        others = [
            accelerator.prepare(loader({**settings, "num_workers": 0}, rows)) for rows in settings["others"]
        ]
        for each in (data, *others):
            with contextlib.suppress(TypeError):
                self.note("length", len(each))
        for epoch in range(settings["epochs"]):
            if settings["set_epoch"]:
                data.set_epoch(epoch)
            self.run_epoch(
                accelerator.skip_first_batches(data, settings["skip"]) if settings["skip"] else data
            )
            for other in others:
                self.model.eval()
                self.evaluate(other)
                self.model.train()
            self.note("draws", [torch.rand(()).item(), random.random(), float(np.random.rand())])
        for parameter in accelerator.unwrap_model(self.model).parameters():
            self.note("weights", parameter)
        if settings["resume"]:
            self.resume(data)
        self.communicate()
        accelerator.free_memory()

    def flags(self) -> list[bool]:
        state = self.accelerator.gradient_state
        return [state.end_of_dataloader, state.in_dataloader]

    def run_epoch(self, data: Any) -> None:
        metric = self.settings["metric"]
        for batch in data:
            self.note("rows", batch["id"])
            self.note("flags", self.flags())
            outputs = self.step(batch) if self.settings["train"] else batch["x"].sum(1, keepdim=True)
            if metric and not self.settings["uneven"]:
                values = METRICS[metric](batch["id"], outputs.detach())
                is_object = metric in ("objects", "dicts")
                self.note(
                    "gathered", self.accelerator.gather_for_metrics(values, use_gather_object=is_object)
                )
        self.note("flags", self.flags())

    def step(self, batch: Any) -> torch.Tensor:
        accelerator, clip = self.accelerator, self.settings["clip"]
        with accelerator.accumulate(self.model):
            outputs = self.model(batch["x"])
            loss = (outputs.float() - batch["y"]).square().mean()
            accelerator.backward(loss)
            self.note("syncs", accelerator.sync_gradients)
            if clip == "norm" and accelerator.sync_gradients:
                self.note("norms", accelerator.clip_grad_norm_(self.model.parameters(), 0.1))
            elif clip == "value" and accelerator.sync_gradients:
                accelerator.clip_grad_value_(self.model.parameters(), 0.01)
            self.optimizer.step()
            self.note("skipped", accelerator.optimizer_step_was_skipped)
            if self.rates is not None:
                self.rates.step()
                self.note("rates", self.rates.get_last_lr())
            self.optimizer.zero_grad()
        self.note("losses", loss)
        return outputs

    def evaluate(self, data: Any) -> None:
        for batch in data:
            self.note("rows", batch["id"])
            self.note("flags", self.flags())
            if not self.settings["uneven"]:
                self.note("gathered", self.accelerator.gather_for_metrics(batch["id"]))
                self.note("gathered", self.accelerator.gather(batch["id"]))

    def resume(self, data: Any) -> None:
        """Read a part, and continue in another loader from the state of the first."""
        iterator = iter(data)
        for batch in itertools.islice(iterator, self.settings["resume"]):
            self.note("rows", batch["id"])
        state = data.state_dict()
        for batch in iterator:
            self.note("rows", batch["id"])
        again = self.accelerator.prepare(loader(self.settings, self.settings["rows"]))
        again.load_state_dict(state)
        for batch in again:
            self.note("resumed", batch["id"])

    def communicate(self) -> None:
        """Call each collective with values of the rank."""
        settings, accelerator, utils = self.settings, self.accelerator, self.library.utils
        rank = accelerator.process_index
        values = {
            "float": torch.arange(3.0) + rank,
            "matrix": torch.ones(2, 2) * rank,
            "scalar": torch.tensor(2.0 + rank),
            "nested": {"a": torch.arange(2.0), "b": [torch.ones(1) * rank, (torch.zeros(2),)]},
        }[settings["reduce_of"]]
        self.note("reduced", accelerator.reduce(values, reduction=settings["reduction"]))
        ragged = {
            "vector": torch.arange(2 + rank),
            "matrix": torch.ones(2 + rank, 3 - rank % 2),
            "nested": [torch.arange(3 - rank), {"x": torch.ones(2, 1 + rank)}],
        }[settings["padded_of"]]
        where = {
            name: settings[f"pad_{name}" if name == "dim" else name]
            for name in ("dim", "pad_index", "pad_first")
        }
        self.note("padded", accelerator.pad_across_processes(ragged, **where))
        self.note("gathered", accelerator.gather({"rank": torch.tensor([rank]), "pair": (torch.ones(2),)}))
        self.note("gathered", utils.gather_object([{"rank": rank}]))
        self.note("gathered", utils.broadcast_object_list([f"of {rank}"]))
        rows = list(range(settings["rows"]))
        with accelerator.split_between_processes(rows, apply_padding=settings["pad_first"]) as mine:
            self.note("splits", mine)


def main() -> None:
    package, folder = sys.argv[1], Path(sys.argv[2])
    library = importlib.import_module(package)
    for name in ("state", "utils"):
        importlib.import_module(f"{package}.{name}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    torch.optim.SGD([torch.zeros(1)]).zero_grad()  # imports the rest of torch
    gc.freeze()  # `free_memory` collects garbage, for which all of torch would be searched each time
    found = []
    for settings in json.loads((folder / "settings.json").read_text()):
        library.utils.set_seed(settings["seed"] % 1000)
        script = Script(settings, library)
        script.train()
        found.append(script.seen)
        rank = script.accelerator.process_index
        library.state.AcceleratorState._reset_state()
        library.state.GradientState._reset_state()
    assert type(script.accelerator).__module__.partition(".")[0] == package
    (folder / f"{package}-{rank}.json").write_text(json.dumps(found))
    # Where a group is destroyed with a model, torch hangs now and then: gloo's thread waits for Python's lock to free a
    # tensor, and who holds it waits for that thread (seen with torch 2.13, in the library beside ours).
    os._exit(0)


if __name__ == "__main__":
    main()
