"""One pass of a loader over its sharded sampler."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import torch

from accel_data.samplers.plan import ShardPlan
from accel_data.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class Position:
    """How far an epoch has been read, by all ranks together: in samples, and in batches of the given
    sampler.
    """

    samples: int = 0
    batches: int = 0


@dataclass(slots=True)
class StreamedStep:
    """What a streamed sampler tells of a step that it has handed out.

    Attributes:
        shape: Its rows.
        is_last: Whether it is this rank's last.
        ends_some_rank: Whether it is any rank's last.
        end: Where it ends.
    """

    shape: StepShape
    is_last: bool
    ends_some_rank: bool
    end: Position


START = Position()


@dataclass(slots=True)
class SamplerRun:
    """What the sampler tells its loader about one pass, and the loader its sampler.

    Args:
        start: Where the pass begins.
        plan: The arithmetic of the pass, where the order can be entered anywhere.
        step_batches: Batches of the given sampler in one step.
        order_state: State of the generator before the order was drawn; given, it is what to draw from.
        has_drawn: Whether the order has been drawn.
        is_shared: Whether other ranks read by the same order, so that it has to be agreed on.
        steps: Without a plan: the steps that were handed out and not yet yielded, oldest first.
    """

    start: Position = START
    plan: ShardPlan | None = None
    step_batches: int = 1
    order_state: torch.Tensor | None = None
    has_drawn: bool = False
    is_shared: bool = False
    steps: deque[StreamedStep] = field(default_factory=deque)
