"""Clocks, memory and rows of a speed case, on an accelerator or, to try the case, on the CPU."""

from __future__ import annotations

import gc
import importlib
import operator
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tools.gpu import results
from tools.harness.device import device_type

LIBRARIES = ("plain", "accel", "accelerate")
IS_SMALL = os.environ["ACCEL_GPU_SIZE"] == "small"
IS_CUDA = device_type() == "cuda"
DEVICE = torch.device("cuda:0" if IS_CUDA else "cpu")
HAS_GOALS = IS_CUDA and not IS_SMALL
_VARIABLES = set(os.environ)


def put(row: str, unit: str, figures: Any, *, note: str = "", **limits: float) -> None:
    """Add a row of the table, with a figure for each library, or ``bound``; goals are checked on a GPU, at full size.

    ``limits`` are of accel's figure, relative to the one named: the least, or the most if it is a time.
    """
    is_time, reached = unit in ("s", "µs"), {name: ratio(figures["accel"], figures[name]) for name in limits}
    is_missed = operator.gt if is_time else operator.lt
    missed = [name for name, limit in limits.items() if HAS_GOALS and is_missed(reached[name], limit)]
    why = "; ".join(f"{reached[name]} of {name}" for name in missed)
    goal = ", ".join(f"{'≤' if is_time else '≥'} {limit:g} of {name}" for name, limit in limits.items())
    note = "; ".join(filter(None, [note, f"{reached['bound']} of bound" if "bound" in limits else ""]))
    about = {"unit": unit, "goal": goal, "note": note, "figures": figures}
    results.put({"row": row, "ok": not why, "why": why, **about})


def ratio(one: float, other: float) -> float:
    """Return ``one / other`` to three digits."""
    return round(one / max(other, 1e-9), 3)


def accelerator(library: str, plugins: Callable[[Any], Any] | None = None, **settings: Any) -> Any:
    """Return an `Accelerator` as if it were the first of the process.

    ``plugins`` returns further settings, made of the ``utils`` of the library.
    """
    for name in set(os.environ) - _VARIABLES:
        if name.startswith(("ACCELERATE_", "FSDP_")):  # Accelerate's plugins write variables
            del os.environ[name]
    states = importlib.import_module("accel_state" if library == "accel" else "accelerate.state")
    states.AcceleratorState._reset_state(True)
    states.GradientState._reset_state()
    more = plugins(importlib.import_module(f"{library}.utils")) if plugins else {}
    return importlib.import_module(library).Accelerator(cpu=not IS_CUDA, **settings, **more)


def clear() -> None:
    """Release cached memory and reset the peak."""
    gc.collect()
    torch._dynamo.reset()
    if IS_CUDA:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak() -> str:
    """Return the peak of allocated device memory since `clear`, none on the CPU."""
    return f"peak {torch.cuda.max_memory_allocated() / 1e9:.2f} GB"


def clocked(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of a function and its seconds, the device's work included."""
    wait: Callable[[], object] = torch.cuda.synchronize if IS_CUDA else list
    wait()
    begun = time.perf_counter()
    result = function(*arguments)
    wait()
    return result, time.perf_counter() - begun


def rounds(functions: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Return the seconds of each function by round; another one begins each, and the first is not counted."""
    seconds: dict[str, list[float]] = defaultdict(list)
    order = list(functions)
    for number in range(count + 1):
        order.append(order.pop(0))
        for name in order:
            took = clocked(functions[name])[1]
            seconds[name] += [took] if number else []
    return seconds


def seconds_to_copy(num_bytes: int, *, to_device: bool) -> float:
    """Return how long large copies between pinned memory and the device take."""
    host = torch.empty(1 << (30 if IS_CUDA else 20), dtype=torch.uint8, pin_memory=IS_CUDA)
    here = host.to(DEVICE, copy=True)
    source, target = (host, here) if to_device else (here, host)
    copies = [clocked(target.copy_, source, True)[1] for _ in range(4)]
    return max(num_bytes * min(copies) / len(host), 1e-9)
