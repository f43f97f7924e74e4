"""What a profile records: the arguments of `torch.profiler.profile`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from accel_state.errors import ConfigError, did_you_mean
from accel_state.kwargs_handler import KwargsHandler

_SCHEDULE_KEYS = ("wait", "warmup", "active", "repeat", "skip_first")


@dataclass
class ProfileKwargs(KwargsHandler):
    """Customises the profiler that `Accelerator.profile` starts.

    Attributes:
        activities: What is recorded: "cpu", "xpu", "mtia", "cuda", "hpu"; None records all that the machine
            has.
        schedule_option: Arguments of `torch.profiler.schedule` (wait, warmup, active, repeat, skip_first).
        on_trace_ready: Called with the profiler whenever a trace is complete.
        record_shapes: Whether the shapes of inputs are recorded.
        profile_memory: Whether allocations are recorded.
        with_stack: Whether source lines are recorded.
        with_flops: Whether floating-point operations are estimated.
        with_modules: Whether module names are recorded.
        output_trace_dir: Folder for one chrome trace per rank; None writes nothing.
    """

    activities: list[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[[torch.profiler.profile], Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None

    def __post_init__(self) -> None:
        self._activities()
        unknown = sorted(set(self.schedule_option or {}) - set(_SCHEDULE_KEYS))
        if unknown:
            raise ConfigError(
                f"`schedule_option` has no key `{unknown[0]}`. Known: {', '.join(_SCHEDULE_KEYS)}."
                + did_you_mean(unknown[0], _SCHEDULE_KEYS)
            )

    def build(self) -> torch.profiler.profile:
        """Return a profiler that has not been started yet."""
        schedule = torch.profiler.schedule(**self.schedule_option) if self.schedule_option else None
        return torch.profiler.profile(
            activities=self._activities(),
            schedule=schedule,
            on_trace_ready=self.on_trace_ready,
            record_shapes=self.record_shapes,
            profile_memory=self.profile_memory,
            with_stack=self.with_stack,
            with_flops=self.with_flops,
            with_modules=self.with_modules,
        )

    def _activities(self) -> list[ProfilerActivity] | None:
        if self.activities is None:
            return None
        known: dict[str, ProfilerActivity] = {
            name.lower(): member for name, member in ProfilerActivity.__members__.items()
        }
        for name in self.activities:
            if name not in known:
                raise ConfigError(
                    f"`activities` has no member `{name}`. Known to this torch: {', '.join(sorted(known))}."
                )
        return [known[name] for name in self.activities]
