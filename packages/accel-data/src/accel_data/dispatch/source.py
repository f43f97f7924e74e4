"""What the main process does in a dispatched epoch: read, scatter, send."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch

from accel_data.batch_metadata import BatchMetadata
from accel_data.dispatch.messages import Kind, Messages, OwnStep
from accel_data.dispatch.scatter import ScatteredStep, ScatterPlan
from accel_ops.nested.structures import recursively_apply


@dataclass(frozen=True, slots=True)
class ReadStep:
    """A step that has been read.

    Args:
        scattered: The pieces of all ranks.
        metadata: Of each batch that was read.
        loader_state: State of a stateful loader after the last of these batches.
    """

    scattered: ScatteredStep
    metadata: list[BatchMetadata]
    loader_state: Any


def read_steps(
    batches: Iterator[tuple[Any, BatchMetadata | None]],
    plan: ScatterPlan,
    *,
    drop_last: bool,
    loader_state: Callable[[], Any] | None,
) -> Iterator[ReadStep]:
    """Yield the steps of an epoch, reading no further than the step that is asked for.

    Args:
        batches: The whole data: batches with their metadata.
        plan: Scatters them.
        drop_last: Leave out a last step with too few batches.
        loader_state: Returns the state of a stateful loader.
    """
    first: list[Any] = []
    while group := list(islice(batches, plan.batches_per_step)):
        if drop_last and len(group) < plan.batches_per_step:
            return
        plain = [batch for batch, _ in group]
        if plan.even and not first:
            # Copies: a rank may change its batch of the first step in place.
            first = [recursively_apply(torch.clone, batch) for batch in plain]
        sizes = [None if metadata is None else metadata.num_samples for _, metadata in group]
        yield ReadStep(
            plan.scatter(plain, first, sizes),
            [metadata for _, metadata in group if metadata is not None],
            None if loader_state is None else loader_state(),
        )


def send_steps(
    steps: Iterator[ReadStep], messages: Messages | None, *, rank: int
) -> Iterator[tuple[OwnStep, ReadStep]]:
    """Send all ranks their steps and yield this rank's.

    The step after the next is read right after a step was sent, while the other ranks work. An error while
    reading is raised when its step is due; until then all ranks go on.

    Args:
        steps: The epoch.
        messages: Connects the other ranks, None if there are none.
        rank: This rank among those that read different data.
    """
    read = _with_error(steps)
    current, following = next(read, None), next(read, None)
    if current is None and messages is not None:
        messages.send_kind(Kind.END)
    while isinstance(current, ReadStep):
        step = current.scattered
        num_following = 0 if following is None else step.num_with_batch
        if isinstance(following, ReadStep):
            num_following = following.scattered.num_with_batch
        if messages is not None:
            messages.send(step, num_following=num_following)
        upcoming = next(read, None)
        yield OwnStep(step.pieces[rank], step.shape, num_following, step.num_batches), current
        current, following = following, upcoming
    if current is not None:
        if messages is not None:
            messages.send_kind(Kind.FAILURE)
        raise current


def _with_error(steps: Iterator[ReadStep]) -> Iterator[ReadStep | Exception]:
    """Yield the steps, and then the error that ended them, if there is one."""
    try:
        yield from steps
    except Exception as error:  # noqa: BLE001 - raised when its step is due
        yield error
