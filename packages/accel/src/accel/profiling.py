"""Measurements of a run: traces of the profiler, throughput, and the part of the peak that is used."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from accel.functions import PROFILE_PATTERN_NAME
from accel_backends import ProfileKwargs
from accel_state.user_warnings import warn_user

if TYPE_CHECKING:
    from torch.utils.flop_counter import FlopCounterMode


@contextmanager
def traced(handler: ProfileKwargs, *, rank: int) -> Iterator[torch.profiler.profile]:
    """Profile the block with the settings of `handler`; with `output_trace_dir`, write each trace when it is complete.

    The first trace of rank 0 is `profile_0.json`; later cycles of a schedule write `profile_0_1.json`,
    `profile_0_2.json`, ….
    """
    if handler.output_trace_dir is None:
        with handler.build() as profiler:
            yield profiler
        return
    folder = Path(handler.output_trace_dir)
    numbers = count()

    def keep(profiler: torch.profiler.profile) -> None:
        number = next(numbers)
        name = PROFILE_PATTERN_NAME.format(suffix=f"{rank}_{number}" if number else rank)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / name))
        if handler.on_trace_ready is not None:
            handler.on_trace_ready(profiler)

    with replace(handler, on_trace_ready=keep).build() as profiler:
        yield profiler
    if next(numbers) == 0:
        warn_user(
            f"The profile in `{folder}` has no trace: its `schedule_option` reached no active step. Call "
            "`profiler.step()` after every step, or shorten `skip_first`, `wait` and `warmup`.",
        )


class Throughput:
    """Measures the steps of a training loop, each in a `with` block.

    Floating-point operations are counted in the first block, which is slower and not timed, with torch's
    `FlopCounterMode`: matrix products, convolutions and attention, forward and backward, including recomputed
    activations; custom kernels of compilers and libraries are not counted. MFU is defined in the PaLM paper, appendix
    B (https://arxiv.org/abs/2204.02311).

    Args:
        device: The device of the model.
        num_ranks: Data-parallel ranks.
        peak_flops: Peak operations per second of the device, None if unknown.
        counts_flops: Count operations.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        num_ranks: int = 1,
        peak_flops: float | None = None,
        counts_flops: bool = True,
    ) -> None:
        self._device = device
        self._num_ranks = num_ranks
        self._peak = peak_flops
        self._counter: FlopCounterMode | None = None
        if counts_flops:
            from torch.utils.flop_counter import FlopCounterMode  # takes a while to import

            self._counter = FlopCounterMode(display=False)
        self.flops_per_step: int | None = None
        self._num_items = 0
        self._num_steps = 0
        self._began = 0.0

    def step(self, num_items: int) -> Throughput:
        """Return a context for one step, with the number of tokens or samples that this rank trains on."""
        self._num_items += num_items
        return self

    def __enter__(self) -> Throughput:
        if self._counter is not None:
            self._counter.__enter__()  # type: ignore[no-untyped-call]
        elif not self._num_steps:
            self._wait()
            self._began = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        if self._counter is None:
            self._num_steps += 1
            return
        self._counter.__exit__(*error)  # type: ignore[no-untyped-call]
        self.flops_per_step = self._counter.get_total_flops() or None
        self._counter = None  # one step is enough: counting slows every operation
        self._num_items = 0

    def figures(self) -> dict[str, float]:
        """Return the measurements since the last call, for `Accelerator.log`, and reset them. Waits for the device.

        ``items_per_s`` is the total of all ranks, assumed to have equally many items, and ``step_s`` the time of a
        step. ``flops_per_step`` and ``flops_per_s`` are per rank, and ``mfu`` is the share of the device's bf16 peak,
        also in FP8. Unknown values are omitted.
        """
        if not self._num_steps:
            return {}
        self._wait()
        seconds = time.perf_counter() - self._began
        step_s = seconds / self._num_steps
        figures = {"items_per_s": self._num_ranks * self._num_items / seconds, "step_s": step_s}
        if self.flops_per_step is not None:
            figures |= {"flops_per_step": self.flops_per_step, "flops_per_s": self.flops_per_step / step_s}
            if self._peak is not None:
                figures["mfu"] = figures["flops_per_s"] / self._peak
        self._num_items = self._num_steps = 0
        return figures

    def _wait(self) -> None:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)


def device_name(device: torch.device) -> str:
    """Return torch's name of the device, an empty string for the CPU and others without a name."""
    name = getattr(torch.get_device_module(device), "get_device_name", None)
    return "" if name is None else str(name(device))


# Operations per second in bf16 (fp16 on V100) without sparsity, by a part of the name that torch gives the device. From
# the data sheets at https://www.nvidia.com/en-us/data-center/ and https://www.amd.com/en/products/accelerators/instinct/.
# Longer names precede names that are a part of them.
PEAKS: dict[str, float] = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "V100": 125e12,
    "MI300X": 1307e12,
}


def peak_flops(device_name: str) -> float | None:
    """Return the operations per second of a device in bf16, None if it is unknown.

    Args:
        device_name: As `torch.cuda.get_device_name` returns it.
    """
    return next((flops for name, flops in PEAKS.items() if name in device_name), None)
