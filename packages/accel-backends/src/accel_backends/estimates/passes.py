"""How often a schedule gathers a sharded unit, and what it keeps meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from accel_backends.pipeline.schedules import SCHEDULES, Action, Pass, ScheduleArgs

ONE_BATCH = (Action(Pass.FORWARD, 0, 0), Action(Pass.BACKWARD, 0, 0))
"""What a rank does without a pipeline."""


def actions_of(schedule: str, *, stage: int, num_stages: int, num_micro_batches: int) -> Sequence[Action]:
    """Return what a rank with one stage does in a step."""
    if num_stages == 1:
        return ONE_BATCH
    return SCHEDULES[schedule](ScheduleArgs(stage, num_stages, 1, num_micro_batches))


def num_forward(actions: Sequence[Action]) -> int:
    """Return how many forward passes there are: one for each micro-batch."""
    return sum(action.kind is Pass.FORWARD for action in actions)


def num_gathers(actions: Sequence[Action], *, is_kept: bool) -> int:
    """Return how often a unit of a stage is gathered.

    Args:
        actions: What the rank does.
        is_kept: Whether the unit stays gathered after a forward pass.
    """
    count, is_gathered = 0, False
    for action in actions:
        if action.kind is Pass.BACKWARD_INPUT and action.stage == 0:
            continue  # nobody waits for gradients of inputs, so all is done in the pass to the parameters
        count += not is_gathered
        is_gathered = is_kept if action.kind is Pass.FORWARD else action.kind is Pass.BACKWARD_INPUT
    return count


def most_kept(actions: Sequence[Action]) -> int:
    """Return of how many micro-batches activations are kept at a time, at most."""
    kept = most = 0
    for action in actions:
        kept += {Pass.FORWARD: 1, Pass.BACKWARD_INPUT: 0}.get(action.kind, -1)
        most = max(most, kept)
    return most
