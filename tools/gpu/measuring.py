"""Clocks, memory and rows of a speed case, on an accelerator or, to try the case, on the CPU."""

from __future__ import annotations

import gc
import importlib
import json
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

LIBRARIES = ("plain", "accel", "accelerate")
Step = Callable[[], torch.Tensor]


class NotHereError(Exception):
    """The case cannot run on this machine; the message is the reason."""


@dataclass
class Row:
    """One line of the table: a figure of each library, and why it is wrong if it is."""

    name: str
    unit: str = ""
    goal: str = ""
    figures: dict[str, float] = field(default_factory=dict)
    note: str = ""
    wrong: list[str] = field(default_factory=list)


class Bench:
    """The device and the size of a run.

    Args:
        device: ``cuda`` or ``cpu``.
        is_small: Use tiny models; goals are then not checked.
    """

    def __init__(self, device: str, *, is_small: bool) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise NotHereError("torch finds no CUDA device")
        self.is_cuda = device == "cuda"
        self.device = torch.device("cuda", 0) if self.is_cuda else torch.device("cpu")
        self.is_small = is_small
        self.has_goals = self.is_cuda and not is_small
        self.compiler = "aot_eager" if is_small else "inductor"
        self._variables = set(os.environ)
        if self.is_cuda:
            torch.cuda.set_device(0)

    def put(self, row: Row) -> None:
        """Print a row, which the driver collects."""
        data = {
            "row": row.name, "ok": not row.wrong, "why": "; ".join(row.wrong), "unit": row.unit, "goal": row.goal,
            "figures": row.figures, "note": row.note,
        }  # fmt: skip
        print("ROW " + json.dumps(data), flush=True)

    def accelerator(self, library: str, **settings: Any) -> Any:
        """Return an `Accelerator` of ``library`` as if it were the first of the process."""
        for name in set(os.environ) - self._variables:
            if name.startswith(("ACCELERATE_", "FSDP_")):  # Accelerate's plugins write variables
                del os.environ[name]
        states = importlib.import_module("accel_state" if library == "accel" else "accelerate.state")
        states.AcceleratorState._reset_state(True)
        states.GradientState._reset_state()
        return importlib.import_module(library).Accelerator(cpu=not self.is_cuda, **settings)

    def sync(self) -> None:
        """Wait for the device."""
        if self.is_cuda:
            torch.cuda.synchronize()

    def clear(self) -> None:
        """Release cached memory and reset the peak."""
        gc.collect()
        torch._dynamo.reset()
        if self.is_cuda:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak_gb(self) -> float:
        """Return the peak of allocated device memory since `clear`."""
        return round(torch.cuda.max_memory_allocated() / 1e9, 2) if self.is_cuda else 0.0

    def clocked(self, function: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of a function and its seconds, the device's work included."""
        self.sync()
        begun = time.perf_counter()
        result = function()
        self.sync()
        return result, time.perf_counter() - begun

    def turns(self, steps: dict[str, Step], *, num_steps: int, num_rounds: int) -> dict[str, float]:
        """Return the median seconds of a step of each; they take turns, and each round starts with another one."""
        seconds: dict[str, list[float]] = {name: [] for name in steps}
        order = list(steps)
        for _ in range(num_rounds):
            order.append(order.pop(0))
            for name in order:
                step = steps[name]
                _, took = self.clocked(lambda step=step: [step() for _ in range(num_steps)])  # type: ignore[misc]
                seconds[name].append(took / num_steps)
        return {name: statistics.median(each) for name, each in seconds.items()}

    def host_waits(self, step: Step, *, count: int = 8) -> tuple[float, str]:
        """Return how often a step makes the host wait for the device, and the lines of these waits."""
        step()
        self.sync()
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(count):
                    step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits = [each for each in caught if "called a synchronizing" in str(each.message)]
        places = Counter(f"{Path(each.filename).name}:{each.lineno}" for each in waits)
        return len(waits) / count, ", ".join(place for place, _ in places.most_common(3))

    def bytes_per_s(self, *, to_device: bool = True) -> float:
        """Return the speed of large copies between pinned memory and the device."""
        size = (1 << 30) if self.is_cuda else 1 << 20
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self.is_cuda)
        here = torch.empty(size, dtype=torch.uint8, device=self.device)
        source, target = (host, here) if to_device else (here, host)
        return max(size / self.clocked(lambda: target.copy_(source, non_blocking=True))[1] for _ in range(4))


def ratio(one: float, other: float) -> float:
    """Return ``one / other`` to three digits."""
    return round(one / other, 3)


def graph_counts() -> Counter[str]:
    """Return how many graphs the compiler has made so far, and how often one broke."""
    from torch._dynamo.utils import counters

    return Counter(graphs=counters["stats"]["unique_graphs"], breaks=sum(counters["graph_break"].values()))


def near(ours: Sequence[float], theirs: Sequence[float], *, tolerance: float) -> bool:
    """Whether two sequences of losses agree."""
    pairs = zip(ours, theirs, strict=True)
    return all(abs(one - other) <= tolerance * max(abs(other), 0.1) for one, other in pairs)


@contextmanager
def roomy_folder(num_bytes: int) -> Iterator[Path]:
    """Give a folder in memory if there is room, else on disk; it is deleted afterwards."""
    places = [Path("/dev/shm"), Path(tempfile.gettempdir())]  # noqa: S108 -- memory, not a name to guess
    for place in places:
        if place.is_dir() and shutil.disk_usage(place).free > 1.3 * num_bytes:
            with tempfile.TemporaryDirectory(prefix="accel-gpu-", dir=place) as folder:
                yield Path(folder)
            return
    raise NotHereError(f"no room for {num_bytes / 1e9:.0f} GB in {' or '.join(map(str, places))}")
