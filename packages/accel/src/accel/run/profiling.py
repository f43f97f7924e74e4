"""Profiles that leave a trace of every rank."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path

import torch

from accel.functions.general import PROFILE_PATTERN_NAME
from accel_backends import ProfileKwargs
from accel_state.user_warnings import warn_user


@contextmanager
def traced(handler: ProfileKwargs, *, rank: int) -> Iterator[torch.profiler.profile]:
    """Profile the block as `handler` says; with `output_trace_dir`, write each trace when it is complete.

    The first trace of rank 0 is `profile_0.json`; those of further cycles of a schedule are
    `profile_0_1.json`, `profile_0_2.json`, ….
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
            f"The profile in `{folder}` has no trace: its `schedule_option` came to no active step. Call "
            "`profiler.step()` after every step, or shorten `skip_first`, `wait` and `warmup`.",
        )
