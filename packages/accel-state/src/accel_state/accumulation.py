"""How gradients accumulate over micro-batches."""

from __future__ import annotations

from dataclasses import dataclass

from accel_state.errors import ConfigError
from accel_state.kwargs_handler import KwargsHandler


@dataclass
class GradientAccumulationPlugin(KwargsHandler):
    """Settings of gradient accumulation.

    Args:
        num_steps: Micro-batches per optimizer step; None leaves it to the `Accelerator`.
        adjust_scheduler: Let torch's own count of scheduler steps include the micro-batches that did not
            step, so that it does not warn of a scheduler stepped before its optimizer. The learning rate
            moves with optimizer steps either way: write schedules in optimizer steps.
        sync_with_dataloader: Always step on the last batch of a loader, even within a window.
        sync_each_batch: Reduce gradients on every micro-batch: slower, but sharded engines need less memory.
    """

    num_steps: int | None = None
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False

    def __post_init__(self) -> None:
        if self.num_steps is not None and self.num_steps < 1:
            raise ConfigError(f"`num_steps` must be at least 1, got {self.num_steps}.")
