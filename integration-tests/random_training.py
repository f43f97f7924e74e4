"""A small training script with many settings, and all that it sees: for Accelerate and for accel alike.

``python random_training.py accel FOLDER`` reads settings as lines of JSON, runs the script with each, and answers with
a line. Each rank is such a process. The settings come from `random_configurations.py`.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import json
import os
import random
import sys
import warnings
from collections import UserDict, namedtuple
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

Settings = dict[str, Any]
Pair = namedtuple("Pair", "ids outputs")


def features(index: int) -> dict[str, torch.Tensor]:
    """Return the row of an index."""
    value = torch.tensor([index, index * index % 7], dtype=torch.float32) / 10
    return {"x": value, "y": torch.tensor([index % 3 - 1.0]), "id": torch.tensor(index)}


class Rows(Dataset):
    def __init__(self, size: int, *, in_batches: bool = False) -> None:
        self.size, self.in_batches = size, in_batches

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if not self.in_batches:
            return features(index)
        rows = [features(2 * index), features(2 * index + 1)]
        return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}


class Stream(IterableDataset):
    """The first rows, shared between workers as PyTorch requests."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Any:
        worker = torch.utils.data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        return (features(index) for index in range(first, self.size, step))


class SizedStream(Stream):
    def __len__(self) -> int:
        return self.size


class Backwards(Sampler):
    """A sampler of one's own, with an order that changes with the epoch."""

    def __init__(self, size: int) -> None:
        self.size, self.epoch = size, 0

    def __len__(self) -> int:
        return self.size

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Any:
        return ((index + self.epoch) % self.size for index in reversed(range(self.size)))


class Varying:
    """A batch sampler without `batch_size`: its batches have one, two and three rows in turn."""

    def __init__(self, size: int) -> None:
        self.batches, first = [], 0
        while first < size:
            rows = len(self.batches) % 3 + 1
            self.batches.append(list(range(first, min(first + rows, size))))
            first += rows

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Any:
        return iter(self.batches)


class Paired(BatchSampler):
    """A batch sampler of one's own, which puts rows of both ends together."""

    def __init__(self, size: int, batch_size: int, drop_last: bool) -> None:
        order = [index // 2 if index % 2 == 0 else size - 1 - index // 2 for index in range(size)]
        super().__init__(order, batch_size, drop_last)


def dataset(settings: Settings, size: int) -> Dataset:
    kinds = {"map": Rows, "stream": Stream, "sized stream": SizedStream}
    if settings["batch_size"] is None:
        return Rows(size, in_batches=True)
    return kinds[settings["data"]](size)


def loader(settings: Settings, size: int) -> DataLoader:
    """Return the data loader that a user builds."""
    rows, batch_size, drop_last = (
        dataset(settings, size),
        settings["batch_size"],
        settings["drop_last"],
    )
    generator = torch.Generator().manual_seed(3)
    workers = {"num_workers": settings["num_workers"]}
    samplers = {
        "random": lambda: RandomSampler(rows),
        "random, generator": lambda: RandomSampler(rows, generator=generator),
        "replacement": lambda: RandomSampler(rows, replacement=True, num_samples=size + 1),
        "subset": lambda: SubsetRandomSampler(range(0, size, 2)),
        "weighted": lambda: WeightedRandomSampler([1.0 + index for index in range(size)], size),
        "own": lambda: Backwards(size),
    }
    match settings["sampler"]:
        case "varying batches":
            return DataLoader(rows, batch_sampler=Varying(size), **workers)
        case "paired batches":
            return DataLoader(rows, batch_sampler=Paired(size, batch_size, drop_last), **workers)
        case "random batches":
            return DataLoader(
                rows, batch_sampler=BatchSampler(RandomSampler(rows), batch_size, drop_last), **workers
            )
        case "in order" | "shuffled" as order:
            return DataLoader(
                rows, batch_size=batch_size, shuffle=order == "shuffled", drop_last=drop_last, **workers
            )
        case name:
            return DataLoader(
                rows, batch_size=batch_size, sampler=samplers[name](), drop_last=drop_last, **workers
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


def scheduler(settings: Settings, optimizer: torch.optim.Optimizer, steps: int) -> Any:
    rates = torch.optim.lr_scheduler
    return {
        "linear": lambda: rates.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
        "step": lambda: rates.StepLR(optimizer, step_size=2, gamma=0.5),
        "cosine": lambda: rates.CosineAnnealingLR(optimizer, T_max=max(steps, 1)),
        "restarts": lambda: rates.CosineAnnealingWarmRestarts(optimizer, T_0=3),
        "one cycle": lambda: rates.OneCycleLR(optimizer, max_lr=0.2, total_steps=max(steps, 2)),
        "plateau": lambda: rates.ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
        "sequence": lambda: rates.SequentialLR(
            optimizer,
            [
                rates.ConstantLR(optimizer, factor=0.1, total_iters=2),
                rates.ExponentialLR(optimizer, gamma=0.9),
            ],
            milestones=[2],
        ),
    }[settings["scheduler"]]()


def shaped(settings: Settings, ids: torch.Tensor, outputs: torch.Tensor) -> Any:
    """Return what a script hands to `gather_for_metrics`."""
    match settings["metric"]:
        case "tensor":
            return ids
        case "tuple":
            return ids, outputs
        case "nested":
            return {"ids": ids, "more": [outputs, (ids * 2,)]}
        case "named tuple":
            return Pair(ids, outputs)
        case "user dict":
            return UserDict(ids=ids, outputs=outputs)
        case "bool":
            return ids % 2 == 0
        case "scalar":
            return outputs.float().sum()
        case "pair of rows and scalar":
            return ids, outputs.float().sum()
        case "objects":
            return [f"row {number}" for number in ids.tolist()]
        case "dicts":
            return [{"id": number} for number in ids.tolist()]
        case "one object":
            return {"ids": ids.tolist()}
    raise ValueError(settings["metric"])


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


class Seen:
    """What a script has seen, by name: lists of values in their order."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}

    def add(self, name: str, value: Any) -> None:
        self.values.setdefault(name, []).append(plain(value))

    @contextlib.contextmanager
    def error(self, name: str) -> Any:
        """Note which built-in error something raises, and continue."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is what the script sees
            self.add(name, kind_of(error))


def kind_of(error: BaseException) -> str:
    """Return the built-in class of an error, since classes of a library's own have other names."""
    kinds = [kind for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    return kinds[0].__name__


def length(value: Any) -> Any:
    try:
        return len(value)
    except TypeError:
        return "no length"


def accelerator_of(settings: Settings, library: Any) -> Any:
    configuration = {
        name: settings[name]
        for name in ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler", "data_seed",
                     "non_blocking", "use_stateful_dataloader")
    }  # fmt: skip
    accumulation: Settings = {}
    if settings["plugin"]:
        accumulation["gradient_accumulation_plugin"] = library.utils.GradientAccumulationPlugin(
            num_steps=settings["accumulation"],
            adjust_scheduler=settings["adjust_scheduler"],
            sync_with_dataloader=settings["sync_with_dataloader"],
            sync_each_batch=settings["sync_each_batch"],
        )
    else:
        accumulation["gradient_accumulation_steps"] = settings["accumulation"]
    if settings["split_argument"]:
        accumulation["split_batches"] = True
    return library.Accelerator(
        cpu=True,
        mixed_precision=settings["mixed_precision"],
        dataloader_config=library.DataLoaderConfiguration(**configuration),
        step_scheduler_with_optimizer=settings["step_scheduler_with_optimizer"],
        device_placement=settings["device_placement"],
        **accumulation,
    )


def train(settings: Settings, library: Any, seen: Seen) -> None:
    """Train as a user would, and note what there is to see."""
    library.utils.set_seed(settings["seed"] % 1000)
    accelerator = accelerator_of(settings, library)
    state = accelerator.gradient_state
    model = Model(0.3 if settings["dropout"] else 0.0)
    kinds = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "adam": lambda p: torch.optim.AdamW(p, lr=0.1),
    }
    optimizer = kinds[settings["optimizer"]](model.parameters())
    data = loader(settings, settings["rows"])
    rates = None
    if settings["scheduler"]:
        steps = settings["epochs"] * max(1, settings["rows"] // (settings["batch_size"] or 2))
        rates = scheduler(settings, optimizer, steps)
        model, optimizer, data, rates = accelerator.prepare(model, optimizer, data, rates)
    else:
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
    others = [
        accelerator.prepare(loader({**settings, "num_workers": 0}, rows)) for rows in settings["others"]
    ]
    for each in (data, *others):
        seen.add("length", length(each))
        for name in ("total_batch_size", "total_dataset_length"):
            with seen.error(name):
                seen.add(name, getattr(each, name))
    for epoch in range(settings["epochs"]):
        if settings["set_epoch"]:
            data.set_epoch(epoch)
        current = data
        if epoch == 0 and settings["skip"]:
            current = accelerator.skip_first_batches(data, settings["skip"])
            seen.add("length", length(current))
        run_epoch(settings, accelerator, model, optimizer, rates, current, seen)
        note_state(state, seen)
        for other in others:
            model.eval()
            evaluate(settings, accelerator, model, other, seen)
            model.train()
        seen.add("draws", [torch.rand(()).item(), random.random(), float(np.random.rand())])
    for parameter in accelerator.unwrap_model(model).parameters():
        seen.add("weights", parameter)
    if settings["resume"]:
        resume(settings, accelerator, data, seen)
    collectives(settings, accelerator, seen)
    accelerator.free_memory()


def note_state(state: Any, seen: Seen) -> None:
    seen.add("flags", [state.end_of_dataloader, state.in_dataloader])
    seen.add("remainders", state.remainder)


def run_epoch(
    settings: Settings, accelerator: Any, model: Any, optimizer: Any, rates: Any, data: Any, seen: Seen
) -> None:
    uneven = settings["uneven"] and settings["train"] and accelerator.num_processes > 1
    state = accelerator.gradient_state
    joined = accelerator.join_uneven_inputs([model]) if uneven else contextlib.nullcontext()
    with joined:
        for number, batch in enumerate(data):
            seen.add("rows", batch["id"])
            note_state(state, seen)
            outputs = batch["x"].sum(1, keepdim=True)
            if settings["train"]:
                outputs = step(settings, accelerator, model, optimizer, rates, batch, seen)
            if settings["metric"] and not settings["uneven"]:
                values = shaped(settings, batch["id"], outputs.detach())
                objects = settings["metric"] in ("objects", "dicts", "one object")
                seen.add("gathered", accelerator.gather_for_metrics(values, use_gather_object=objects))
            if settings["break_after"] == number + 1 and not uneven:
                break
    if rates is not None and settings["train"] and settings["scheduler"] == "plateau":
        rates.step(1.0)
        seen.add("rates", [group["lr"] for group in optimizer.param_groups])


def step(
    settings: Settings, accelerator: Any, model: Any, optimizer: Any, rates: Any, batch: Any, seen: Seen
) -> torch.Tensor:
    with accelerator.accumulate(model):
        outputs = model(batch["x"])
        loss = (outputs.float() - batch["y"]).square().mean()
        accelerator.backward(loss)
        seen.add("syncs", accelerator.sync_gradients)
        if settings["clip"] and accelerator.sync_gradients:
            if settings["clip"] == "norm":
                seen.add("norms", accelerator.clip_grad_norm_(model.parameters(), 0.1))
            else:
                accelerator.clip_grad_value_(model.parameters(), 0.01)
        optimizer.step()
        seen.add("skipped", accelerator.optimizer_step_was_skipped)
        if rates is not None and settings["scheduler"] != "plateau":
            rates.step()
            seen.add("rates", rates.get_last_lr())
        optimizer.zero_grad()
    seen.add("losses", loss)
    return outputs


def evaluate(settings: Settings, accelerator: Any, model: Any, data: Any, seen: Seen) -> None:
    state = accelerator.gradient_state
    for batch in data:
        seen.add("rows", batch["id"])
        note_state(state, seen)
        if not settings["uneven"]:
            seen.add("gathered", accelerator.gather_for_metrics(batch["id"]))
            seen.add("gathered", accelerator.gather(batch["id"]))


def resume(settings: Settings, accelerator: Any, data: Any, seen: Seen) -> None:
    """Read a part, and continue in another loader from the state of the first."""
    iterator = iter(data)
    for batch in itertools.islice(iterator, settings["resume"]):
        seen.add("rows", batch["id"])
    state = data.state_dict()
    for batch in iterator:
        seen.add("rows", batch["id"])
    again = accelerator.prepare(loader(settings, settings["rows"]))
    again.load_state_dict(state)
    for batch in again:
        seen.add("resumed", batch["id"])


def collectives(settings: Settings, accelerator: Any, seen: Seen) -> None:
    rank = accelerator.process_index
    values = {
        "float": torch.arange(3.0) + rank,
        "matrix": torch.ones(2, 2) * rank,
        "scalar": torch.tensor(2.0 + rank),
        "integers": torch.arange(3) + rank,
        "nested": {"a": torch.arange(2.0), "b": [torch.ones(1) * rank, (torch.zeros(2),)]},
    }[settings["reduce_of"]]
    reduced = accelerator.reduce(values, reduction=settings["reduction"], scale=settings["scale"])
    seen.add("reduced", reduced)
    ragged = {
        "vector": torch.arange(2 + rank),
        "matrix": torch.ones(2 + rank, 3 - rank % 2),
        "nested": [torch.arange(3 - rank), {"x": torch.ones(2, 1 + rank)}],
    }[settings["padded_of"]]
    padded = accelerator.pad_across_processes(
        ragged, dim=settings["pad_dim"], pad_index=settings["pad_index"], pad_first=settings["pad_first"]
    )
    seen.add("padded", padded)
    seen.add("gathered", accelerator.gather({"rank": torch.tensor([rank]), "pair": (torch.ones(2),)}))
    objects = library_of(accelerator).utils.gather_object([{"rank": rank}])
    seen.add("gathered", objects)
    shared = library_of(accelerator).utils.broadcast_object_list([f"of {rank}"])
    seen.add("gathered", shared)
    values = list(range(settings["rows"]))
    with accelerator.split_between_processes(values, apply_padding=settings["pad_first"]) as mine:
        seen.add("splits", mine)


def library_of(accelerator: Any) -> Any:
    return importlib.import_module(type(accelerator).__module__.partition(".")[0])


def observed(settings: Settings, library: Any) -> dict[str, Any]:
    """Run the script and return what it sees, with the error that ends it, if one does."""
    seen = Seen()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train(settings, library, seen)
    except Exception as error:  # noqa: BLE001 -- an error is what the script sees
        seen.add("error", kind_of(error))
        seen.values["message"] = [f"{type(error).__name__}: {error}"]
    finally:
        library.state.AcceleratorState._reset_state()
        library.state.GradientState._reset_state()
    return seen.values


def main() -> None:
    if sys.argv[1] == "accelerate":
        sys.path.insert(0, sys.argv[2])  # may hold the package, where the environment does not
    library = importlib.import_module(sys.argv[1])
    for name in ("state", "utils"):
        importlib.import_module(f"{sys.argv[1]}.{name}")
    torch.set_num_threads(1)
    answers = io.open(os.dup(1), "w", encoding="utf-8")  # noqa: SIM115, UP020 -- what libraries print goes elsewhere
    os.dup2(2, 1)
    torch.optim.SGD([torch.zeros(1)]).zero_grad()  # imports the rest of torch
    gc.freeze()  # `free_memory` collects garbage, for which all of torch would be searched each time
    for line in sys.stdin:
        print(json.dumps(observed(json.loads(line), library)), file=answers, flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
