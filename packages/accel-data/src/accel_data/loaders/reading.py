"""The loops over a loader's batches. Everything that can be decided before the loop is."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from accel_data.loaders.placement import Placement
from accel_data.loaders.progress import Progress
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.loaders.tagging import Note, Notes
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.run import Position, SamplerRun


def read_planned(
    batches: Iterator[Any],
    plan: ShardPlan,
    place: Placement | None,
    *,
    loader: DataLoaderStateMixin,
    progress: Progress,
) -> Iterator[Any]:
    """Yield the batches of a pass whose length is known: no batch is fetched ahead."""
    loader.remainder = plan.remainder
    loader.will_pad = plan.even and plan.remainder > 0
    loader.step_shape = plan.full_shape()
    last, common = plan.num_own_steps, plan.num_common_steps
    for step, batch in enumerate(batches if place is None else place.all_of(batches), start=1):
        progress.steps = step
        if step >= common:
            loader.ends_some_rank = step in (common, last)
        if step == last:
            loader.end_of_dataloader = True
            loader.step_shape = plan.shape(step - 1)
        yield batch


def read_streamed(
    batches: Iterator[Any],
    run: SamplerRun,
    place: Placement | None,
    *,
    loader: DataLoaderStateMixin,
    progress: Progress,
) -> Iterator[Any]:
    """Yield the batches of a pass whose sampler tells about each step as it goes."""
    steps = run.steps
    for number, batch in enumerate(batches if place is None else place.all_of(batches), start=1):
        step = steps.popleft()
        progress.steps = number
        progress.end = step.end
        loader.step_shape = step.shape
        loader.ends_some_rank = step.ends_some_rank
        if step.is_last:
            loader.end_of_dataloader = True
            loader.remainder = 0 if step.shape.is_plain else step.shape.num_real
        yield batch


def read_ahead(
    batches: Iterator[tuple[Any, Note | None]],
    place: Placement | None,
    *,
    loader: DataLoaderStateMixin,
    progress: Progress,
    step_size: Position,
    ends_alike: bool,
    loader_state: Callable[[], Any] | None = None,
) -> Iterator[Any]:
    """Yield the batches of a stream, which is known to end only when the next batch has been asked for.

    Args:
        batches: The batches with their notes.
        place: Puts batches on their device.
        loader: Told about each step.
        progress: Told about each step.
        step_size: What one step of all ranks reads.
        ends_alike: Whether all ranks have as many batches.
        loader_state: Returns the state of a `StatefulDataLoader`, to be noted after each batch.
    """
    start, step = progress.start, 0
    current = next(batches, None)
    begun = _begin(place, current)
    while current is not None:
        batch, note = current
        # Noted before the next batch is asked for: that one has not been read as far as the user is
        # concerned.
        state = None if loader_state is None else loader_state()
        following = next(batches, None)
        begun, begun_before = _begin(place, following), begun
        step += 1
        progress.steps = step
        progress.end = Position(
            start.samples + step * step_size.samples, start.batches + step * step_size.batches
        )
        progress.loader_state = state
        loader.ends_some_rank = following is None if ends_alike else None
        if note is not None:
            loader.step_shape = note.shape
            progress.note_dataset(note)
        if following is None:
            loader.end_of_dataloader = progress.is_complete = True
            shape = loader.step_shape
            loader.remainder = -1 if shape is None else 0 if shape.is_plain else shape.num_real
        yield batch if place is None else place.finish(begun_before)
        current = following


def read_noted(
    batches: Iterator[Any],
    read: Callable[[Iterator[Any]], Iterator[Any]],
    *,
    notes: Notes,
    progress: Progress,
) -> Iterator[Any]:
    """Yield what ``read`` makes of the batches, and keep the state of the data set after each.

    Args:
        batches: Leave their notes in ``notes``.
        read: Yields one batch for each that it takes, and may take some ahead.
        notes: Of the batch that was taken last.
        progress: Told about the state.
    """
    ahead: deque[Note | None] = deque()

    def taken() -> Iterator[Any]:
        for batch, note in notes.beside(batches):
            ahead.append(note)
            yield batch

    for batch in read(taken()):
        note = ahead.popleft()
        if note is not None:
            progress.note_dataset(note)
        yield batch


def _begin(place: Placement | None, fetched: tuple[Any, Note | None] | None) -> Any:
    return None if place is None or fetched is None else place.begin(fetched[0])
