"""Clocks, memory and rows of a speed case, on an accelerator or, to try the case, on the CPU."""

from __future__ import annotations

import gc
import importlib
import json
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

LIBRARIES = ("plain", "accel", "accelerate")


class NotHereError(Exception):
    """The case cannot run on this machine; the message is the reason."""


class Bench:
    """The device, ``cuda`` or ``cpu``, and the size of a run; goals are checked on a GPU, at full size."""

    def __init__(self, device: str, *, is_small: bool) -> None:
        self.is_cuda, self.is_small = device == "cuda", is_small
        if self.is_cuda and not torch.cuda.is_available():
            raise NotHereError("torch finds no CUDA device")
        self.device = torch.device("cuda", 0) if self.is_cuda else torch.device("cpu")
        self.has_goals = self.is_cuda and not is_small
        self._variables = set(os.environ)

    def put(
        self, row: str, unit: str, goal: str, figures: Mapping[str, float], *, note: str = "", wrong: str = "",
        **limits: float,
    ) -> None:  # fmt: skip
        """Print a row, which the driver collects.

        Args:
            row, unit, goal, figures, note: What the table has; a figure for each library, or ``bound``.
            wrong: What is wrong apart from speed.
            limits: Of accel's figure, relative to another: the least, or the most where it is a time.
        """
        why = [wrong] if wrong else []
        for name, limit in limits.items() if self.has_goals else ():
            reached = ratio(figures["accel"], figures[name])
            if reached > limit if unit in ("s", "µs") else reached < limit:
                why.append(f"{reached} of {name}")
        data = {"row": row, "ok": not why, "why": "; ".join(why), "unit": unit, "goal": goal, "note": note}
        print("ROW " + json.dumps({**data, "figures": figures}), flush=True)

    def accelerator(self, library: str, **settings: Any) -> Any:
        """Return an `Accelerator` of ``library`` as if it were the first of the process."""
        for name in set(os.environ) - self._variables:
            if name.startswith(("ACCELERATE_", "FSDP_")):  # Accelerate's plugins write variables
                del os.environ[name]
        states = importlib.import_module("accel_state" if library == "accel" else "accelerate.state")
        states.AcceleratorState._reset_state(True)
        states.GradientState._reset_state()
        return importlib.import_module(library).Accelerator(cpu=not self.is_cuda, **settings)

    def clear(self) -> None:
        """Release cached memory and reset the peak."""
        gc.collect()
        torch._dynamo.reset()
        if self.is_cuda:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def peak(self) -> str:
        """Return the peak of allocated device memory since `clear`."""
        return f"{torch.cuda.max_memory_allocated() / 1e9 if self.is_cuda else 0:.2f} GB"

    def clocked(self, function: Callable[[], Any]) -> tuple[Any, float]:
        """Return the result of a function and its seconds, the device's work included."""
        wait: Callable[[], object] = torch.cuda.synchronize if self.is_cuda else list
        wait()
        begun = time.perf_counter()
        result = function()
        wait()
        return result, time.perf_counter() - begun

    def seconds_to_copy(self, num_bytes: int, *, to_device: bool) -> float:
        """Return how long large copies between pinned memory and the device take."""
        size = (1 << 30) if self.is_cuda else 1 << 20
        host = torch.empty(size, dtype=torch.uint8, pin_memory=self.is_cuda)
        here = torch.empty(size, dtype=torch.uint8, device=self.device)
        source, target = (host, here) if to_device else (here, host)
        copies = [self.clocked(lambda: target.copy_(source, non_blocking=True))[1] for _ in range(4)]
        return max(num_bytes * min(copies) / size, 1e-9)


def ratio(one: float, other: float) -> float:
    """Return ``one / other`` to three digits."""
    return round(one / max(other, 1e-9), 3)
