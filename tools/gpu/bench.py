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

from tools.gpu import pytest_rows
from tools.harness.device import device_type

LIBRARIES = ("plain", "accel", "accelerate")
IS_SMALL = os.environ["ACCEL_GPU_SIZE"] == "small"
IS_CUDA = device_type() == "cuda"
DEVICE = torch.device("cuda:0" if IS_CUDA else "cpu")
HAS_GOALS = IS_CUDA and not IS_SMALL


def put(row: str, unit: str, figures: Any, *, note: str = "", **limits: float) -> None:
    """Add a row of the table, with a figure for each library, or ``bound``; goals are checked on a GPU, at full size.

    ``limits`` are of accel's figure, relative to the one named: the least, or the most if it is a time.
    """
    is_missed, sign = (operator.gt, "≤") if unit in ("s", "µs") else (operator.lt, "≥")
    ratios = {name: round(figures["accel"] / max(figures[name], 1e-9), 3) for name in limits}
    missed = [name for name in limits if HAS_GOALS and is_missed(ratios[name], limits[name])]
    why = "; ".join(f"{ratios[name]} of {name}" for name in missed)
    note += f"; {ratios['bound']} of bound" if "bound" in limits else ""
    goal = ", ".join(f"{sign} {limit:g} of {name}" for name, limit in limits.items())
    about = {"unit": unit, "goal": goal, "note": note.strip("; "), "figures": figures}
    pytest_rows.put({"row": row, "ok": not why, "why": why, **about})


def accelerator(library: str, plugins: Callable[[Any], Any] | None = None, **settings: Any) -> Any:
    """Return an `Accelerator` as if it were the first of the process, None for plain torch.

    ``plugins`` returns further settings, made of the ``utils`` of the library.
    """
    if library == "plain":
        return None
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


def clocked(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """Return the result of a function and its seconds, the device's work included."""
    wait: Callable[[], object] = torch.cuda.synchronize if IS_CUDA else list
    wait()
    begun = time.perf_counter()
    result = function(*arguments)
    wait()
    return result, time.perf_counter() - begun


def rounds(functions: Mapping[str, Callable[[], Any]], count: int) -> dict[str, list[float]]:
    """Return the seconds of each function by round, in turn forward and backward; the first round is not counted."""
    seconds: dict[str, list[float]] = defaultdict(list)
    for number in range(count + 1):
        for name in functions if number % 2 else reversed(list(functions)):
            took = clocked(functions[name])[1]
            seconds[name] += [took] if number else []
    return seconds


def seconds_to_copy(num_bytes: int) -> float:
    """Return how long large copies from pinned memory to the device take."""
    host = torch.empty(1 << (30 if IS_CUDA else 20), dtype=torch.uint8, pin_memory=IS_CUDA)
    target = torch.empty_like(host, device=DEVICE)
    return max(num_bytes * min(clocked(target.copy_, host, True)[1] for _ in range(4)) / len(host), 1e-9)
