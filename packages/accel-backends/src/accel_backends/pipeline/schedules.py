"""Schedules: the order in which a rank runs its stages forward and backward for the micro-batches of a batch.

GPipe: Huang et al., https://arxiv.org/abs/1811.06965. 1F1B: Narayanan et al., https://arxiv.org/abs/1806.03377.
Interleaved 1F1B: Narayanan et al., https://arxiv.org/abs/2104.04473. Zero bubble (ZB1P): Qi et al.,
https://arxiv.org/abs/2401.10241.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from accel_backends.pipeline.chunks import chunk_bounds


class Pass(enum.Enum):
    """A pass of a stage with a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BACKWARD_INPUT = "backward input"
    """Gradients of what the stage received; the previous stage waits for them."""
    BACKWARD_WEIGHT = "backward weight"
    """Gradients of the parameters, off the critical path."""


@dataclass(frozen=True, slots=True)
class Action:
    """One pass of one stage with one micro-batch."""

    kind: Pass
    stage: int
    micro_batch: int


@dataclass(frozen=True, slots=True)
class ScheduleArgs:
    """A rank of a pipeline and its batch.

    Attributes:
        rank: Its index in the pipeline.
        num_ranks: Ranks of the pipeline.
        stages_per_rank: Stages of each rank: every ``num_ranks``th.
        num_micro_batches: Micro-batches of the batch.
    """

    rank: int
    num_ranks: int
    stages_per_rank: int
    num_micro_batches: int

    def in_rounds(self, *, backward: bool) -> list[tuple[int, int]]:
        """Return stages and micro-batches in the order in which they are run.

        A round of about as many micro-batches as there are ranks goes through all stages before the next one begins.
        """
        num_rounds = max(1, self.num_micro_batches // self.num_ranks)
        stages = [number * self.num_ranks + self.rank for number in range(self.stages_per_rank)]
        return [
            (stage, micro_batch)
            for first, end in chunk_bounds(self.num_micro_batches, num_rounds)
            for stage in (reversed(stages) if backward else stages)
            for micro_batch in range(first, end)
        ]

    def num_ahead(self, per_rank: int) -> int:
        """Return how many forward passes precede the first backward pass: ``per_rank`` more on each earlier rank."""
        num_rounds = max(1, self.num_micro_batches // self.num_ranks)
        first, end = chunk_bounds(self.num_micro_batches, num_rounds)[0]
        ahead = (self.stages_per_rank - 1) * (end - first) + per_rank * (self.num_ranks - 1 - self.rank)
        return min(ahead, self.stages_per_rank * self.num_micro_batches)


def gpipe(args: ScheduleArgs) -> list[Action]:
    """Return all forward passes, then all backward passes: activations of all micro-batches are kept."""
    numbers = range(args.num_micro_batches)
    return [Action(kind, args.rank, number) for kind in (Pass.FORWARD, Pass.BACKWARD) for number in numbers]


def one_forward_one_backward(args: ScheduleArgs) -> list[Action]:
    """Return forward passes until the first backward pass is possible, then one of each in turn."""
    return _alternating(args, args.num_ahead(1 if args.stages_per_rank == 1 else 2))


def zero_bubble(args: ScheduleArgs) -> list[Action]:
    """Return 1F1B in which gradients of parameters are computed when the rank would be idle."""
    actions: list[Action] = []
    waiting: list[Action] = []
    num_backward = 0
    for action in _alternating(args, args.num_ahead(1)):
        if action.kind is Pass.FORWARD:
            actions.append(action)
            continue
        actions.append(Action(Pass.BACKWARD_INPUT, action.stage, action.micro_batch))
        waiting.append(Action(Pass.BACKWARD_WEIGHT, action.stage, action.micro_batch))
        if num_backward >= args.rank:
            actions.append(waiting.pop(0))
        num_backward += 1
    return actions + waiting


def _alternating(args: ScheduleArgs, num_ahead: int) -> list[Action]:
    forward = [Action(Pass.FORWARD, *one) for one in args.in_rounds(backward=False)]
    backward = [Action(Pass.BACKWARD, *one) for one in args.in_rounds(backward=True)]
    actions = forward[:num_ahead]
    for number, action in enumerate(backward):
        actions += [*forward[num_ahead + number : num_ahead + number + 1], action]
    return actions


SCHEDULES: Mapping[str, Callable[[ScheduleArgs], list[Action]]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": one_forward_one_backward,
    "zero_bubble": zero_bubble,
}
"""By name."""
