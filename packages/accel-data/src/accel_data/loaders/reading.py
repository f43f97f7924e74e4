"""The loops over a loader's batches. Everything that can be decided before the loop is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from accel_data.loaders.placement import Placement
from accel_data.loaders.progress import Progress
from accel_data.loaders.reader import Batches
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.position import Position
from accel_data.samplers.sampler_pass import SamplerPass
from accel_data.step import full_step
from accel_state.gradient_state import current_gradient
from accel_state.user_warnings import warn_user


def read_planned(
    batches: Batches,
    plan: ShardPlan,
    place: Placement | None,
    *,
    loader: DataLoaderStateMixin,
    progress: Progress,
) -> Iterator[Any]:
    """Yield the batches of a pass whose length is known: no batch is prefetched."""
    loader.remainder = plan.remainder
    loader.will_pad = plan.even and plan.remainder > 0
    loader.step_shape = plan.full_shape()
    last, common = plan.num_own_steps, plan.num_common_steps
    for step, (batch, metadata) in enumerate(batches if place is None else place.all_of(batches), start=1):
        progress.steps = step
        if metadata is not None:
            progress.update_dataset(metadata)
        if step >= common:
            loader.ends_some_rank = step in (common, last)
        if step == last:
            loader.end_of_dataloader = True
            loader.step_shape = plan.shape(step - 1)
        yield batch
    warn_of_fewer_batches(plan.rank, last, plan.num_steps)


def read_sampled(
    batches: Batches,
    sampler_pass: SamplerPass,
    place: Placement | None,
    *,
    loader: DataLoaderStateMixin,
    progress: Progress,
) -> Iterator[Any]:
    """Yield the batches of a pass without a plan, whose sampler describes each step."""
    steps, number = sampler_pass.steps, 0
    for number, (batch, metadata) in enumerate(batches if place is None else place.all_of(batches), start=1):
        step = steps.popleft()
        progress.steps = number
        progress.end = step.end
        if metadata is not None:
            progress.update_dataset(metadata)
        loader.step_shape = step.shape
        loader.ends_some_rank = step.ends_some_rank
        if step.is_last:
            loader.end_of_dataloader = True
            loader.remainder = step.shape.remainder(loader.rows_of_full_batch)
        yield batch
    warn_of_fewer_batches(sampler_pass.rank, number, number + sampler_pass.misses_last_step)


def read_stream(
    batches: Batches,
    place: Placement | None,
    *,
    loader: DataLoaderStateMixin,
    progress: Progress,
    step_size: Position,
    ends_alike: bool,
    loader_state: Callable[[], Any] | None = None,
    at_end: Callable[[int], None],
) -> Iterator[Any]:
    """Yield the batches of a stream. Each is prefetched: only then is it known whether the one before is the last.

    Args:
        batches: The batches with their metadata.
        place: Puts batches on their device.
        loader: Is updated at each step.
        progress: Likewise.
        step_size: What one step of all ranks reads.
        ends_alike: Whether all ranks have the same number of batches.
        loader_state: Returns the state of a `StatefulDataLoader`, which is kept after each batch.
        at_end: Called with the number of batches when all have been read.
    """
    start, step = progress.start, 0
    current = next(batches, None)
    begun = _begin(place, current)
    while current is not None:
        batch, metadata = current
        # Before the next batch is fetched, which has not been read as far as the user is concerned.
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
        if metadata is not None:
            rows = metadata.num_samples if step_size.batches == 1 else None
            loader.step_shape = metadata.shape if rows is None else full_step(rows, 1)
            progress.update_dataset(metadata)
        if following is None:
            loader.end_of_dataloader = progress.is_complete = True
            shape = loader.step_shape
            loader.remainder = -1 if shape is None else shape.remainder(loader.rows_of_full_batch)
        yield batch if place is None else place.finish(begun_before)
        current = following
    at_end(step)


def warn_of_fewer_batches(rank: int, num_read: int, num_of_others: int) -> None:
    """Warn a training loop whose rank has read all its batches, if other ranks have more and would wait for it."""
    if num_read < num_of_others and torch.is_grad_enabled() and not current_gradient().joins_uneven_inputs:
        warn_user(
            f"Rank {rank} has read its {num_read} batches, and other ranks have {num_of_others}: the backward pass "
            "of the next one waits for this rank until it times out. Train within `join_uneven_inputs`, or prepare "
            "the loader with `even_batches=True`.",
            main_process_only=False,
        )


def _begin(place: Placement | None, fetched: tuple[Any, Any] | None) -> Any:
    return None if place is None or fetched is None else place.begin(fetched[0])
