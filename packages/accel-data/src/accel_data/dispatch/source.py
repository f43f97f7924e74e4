"""What the main process does in a dispatched epoch: read, scatter, send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from accel_data.dispatch.scatter import ScatteredStep, ScatterPlan
from accel_data.dispatch.send import OwnStep, send_end, send_failure, send_step
from accel_data.step import ReadStates
from accel_ops.nested.structures import recursively_apply


@dataclass(frozen=True, slots=True)
class ReadStep:
    """A step that has been read.

    Args:
        scattered: The pieces of all ranks.
        states: States of data set and loader after the last of its batches.
    """

    scattered: ScatteredStep
    states: ReadStates


def read_steps(
    batches: Iterator[tuple[Any, int | None]],
    plan: ScatterPlan,
    *,
    drop_last: bool,
    read_states: Callable[[], ReadStates],
) -> Iterator[ReadStep]:
    """Yield the steps of an epoch, reading no further than the step that is asked for.

    Args:
        batches: The whole data: batches, and how many samples each was made from if that is known.
        plan: Scatters them.
        drop_last: Leave out a last step with too few batches.
        read_states: Returns the states of data set and loader.
    """
    first: list[Any] = []
    while group := list(islice(batches, plan.batches_per_step)):
        if drop_last and len(group) < plan.batches_per_step:
            return
        plain, sizes = [batch for batch, _ in group], [size for _, size in group]
        if plan.even and not first:
            # Copies: a rank may change its batch of the first step in place.
            first = [recursively_apply(torch.clone, batch) for batch in plain]
        yield ReadStep(plan.scatter(plain, first, sizes), read_states())


def send_steps(steps: Iterator[ReadStep], *, rank: int) -> Iterator[tuple[OwnStep, ReadStates | None]]:
    """Send all ranks their steps and yield this rank's, with the states after it; None for the last.

    The step after the next is read right after a step was sent, while the other ranks work. An error while
    reading is raised when its step is due; until then all ranks go on.

    Args:
        steps: The epoch.
        rank: This rank among those that read different data.
    """
    read = _with_error(steps)
    current, following = next(read, None), next(read, None)
    if current is None:
        send_end()
    while isinstance(current, ReadStep):
        step = current.scattered
        num_following = 0 if following is None else step.num_with_batch
        if isinstance(following, ReadStep):
            num_following = following.scattered.num_with_batch
        send_step(step, num_following=num_following)
        upcoming = next(read, None)
        # At its end the data set may only now know that the epoch has ended: the state is that at the time of saving.
        states = current.states if num_following else None
        yield OwnStep(step.pieces[rank], step.shape, num_following, step.num_batches), states
        current, following = following, upcoming
    if current is not None:
        send_failure(current)
        raise current


def _with_error(steps: Iterator[ReadStep]) -> Iterator[ReadStep | Exception]:
    """Yield the steps, and then the error that ended them, if there is one."""
    try:
        yield from steps
    except Exception as error:  # noqa: BLE001 - raised when its step is due
        yield error
