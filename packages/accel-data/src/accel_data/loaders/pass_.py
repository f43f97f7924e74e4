"""One pass over a prepared loader: the loop over its batches, and what is known at each of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from accel_data.loaders.reader import Fetched
from accel_data.mesh import DataRanks
from accel_data.step import NO_STATES, START, Position, ReadStates, StepInfo, StepShape, full_step
from accel_state.gradient_state import GradientState, current_gradient
from accel_state.user_warnings import warn_user

Steps = Iterator[tuple[Any, StepInfo]]


class DataLoaderStateMixin:
    """A loader that `GradientState` knows between `begin` and `end`.

    Attributes:
        end_of_dataloader: Whether the current batch is this rank's last.
        ends_some_rank: Whether it is the last of any rank; None where that cannot be known.
        remainder: Samples in the last global batch if it is not full; 0 if it is full; -1 while that is
            unknown.
        will_pad: Whether the last step is known to be padded.
        gradient_state: The state of accumulation, which knows the loader that is being read.
        step_shape: Rows of every rank in the current step, and how many are no padding; None if unknown.
    """

    gradient_state: GradientState = current_gradient()
    end_of_dataloader: bool = False
    ends_some_rank: bool | None = False
    remainder: int = -1
    step_shape: StepShape | None = None
    will_pad: bool = False

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        return None

    @property
    def counts_batches(self) -> bool:
        """Whether the shape counts batches instead of rows."""
        return False

    def reset(self) -> None:
        """Forget what is known about the pass."""
        self.end_of_dataloader = False
        self.ends_some_rank = False
        self.remainder = -1
        self.step_shape = None
        self.will_pad = False

    def begin(self) -> None:
        """Start a pass: this loader becomes the active one."""
        self.reset()
        self.gradient_state._add_dataloader(self)

    def enter(self, step: StepInfo) -> None:
        """Show what is known of the step whose batch is yielded next."""
        # Setting an attribute of an adapter looks at those of the inner loader too, which takes a microsecond.
        if step.shape is not self.step_shape:
            self.step_shape = step.shape
        if step.ends_some_rank is not self.ends_some_rank:
            self.ends_some_rank = step.ends_some_rank
        if step.is_last:
            self.end_of_dataloader = True
            if self.remainder < 0 and step.shape is not None:
                self.remainder = step.shape.remainder(self.rows_of_full_batch)

    def end(self) -> None:
        """End a pass, complete or not: the loader around this one becomes active again."""
        self.gradient_state._remove_dataloader(self)


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a pass begins, or how far it has come.

    Args:
        position: The first sample that has not been read.
        order: The state that the order of the epoch is drawn from, None if it has not been drawn.
        states: States of data set and loader at that place, which then need not be read again.
        num_workers: Workers that have read the epoch so far, None if unknown.
        num_ranks: Ranks that have read the epoch so far.
        is_complete: Whether the epoch is known to have ended there.
    """

    position: Position = START
    order: torch.Tensor | None = None
    states: ReadStates = NO_STATES
    num_workers: int | None = None
    num_ranks: int = 1
    is_complete: bool = False


class Pass:
    """One pass of one rank.

    Args:
        start: Where it begins.
        steps: This rank's batches, each with what is known of its step.
        ranks: This rank and those that share the data with it.
        order_state: Returns the state that the order was drawn from, None if it has not been drawn.
        read_states: Returns the states of data set and loader where they have been read to.
        num_missed: Returns, after the last batch, how many more other ranks have.
    """

    def __init__(
        self,
        start: Position,
        steps: Steps,
        *,
        ranks: DataRanks,
        order_state: Callable[[], torch.Tensor | None],
        read_states: Callable[[], ReadStates],
        num_missed: Callable[[], int],
    ) -> None:
        self.order_state = order_state
        self._start = start
        self._steps = steps
        self._ranks = ranks
        self._read_states = read_states
        self._num_missed = num_missed
        self._step: StepInfo | None = None

    def run(self, loader: DataLoaderStateMixin) -> Iterator[Any]:
        """Yield the batches, and show in ``loader`` what is known at each."""
        num_read = 0
        # Not kept: what the steps are read from ends with the loop.
        steps, self._steps = self._steps, iter(())
        for batch, step in steps:
            num_read += 1
            self._step = step
            loader.enter(step)
            yield batch
        num_missed = self._num_missed()
        if num_missed:
            warn_of_fewer_batches(self._ranks.rank, num_read, num_read + num_missed)

    @property
    def position(self) -> Position:
        """Where the last batch that was yielded ended."""
        return self._start if self._step is None else self._step.end

    def reached(self) -> Resumption:
        """Return what a pass needs to continue after the last batch that was yielded."""
        step, order, num_ranks = self._step, self.order_state(), self._ranks.num_ranks
        if step is None:
            return Resumption(self._start, order, num_ranks=num_ranks)
        states = self._read_states() if step.states is None else step.states
        return Resumption(step.end, order, states, num_ranks=num_ranks, is_complete=step.ends_epoch)


@dataclass(slots=True)
class Progress:
    """How far a loader has been read. Loaders made from it by skipping share it, so they count the same epochs.

    Args:
        epoch: The epoch that is being read, or comes next.
        resumption: Set while the next pass is to begin elsewhere than at the start of the epoch.
        current: The pass that is under way or was left early.
    """

    epoch: int = 0
    resumption: Resumption | None = None
    current: Pass | None = None

    def begin(self, new: Pass) -> None:
        """Begin a pass."""
        self.resumption, self.current = None, new

    def resume(self, epoch: int, resumption: Resumption) -> None:
        """Set where the next pass begins."""
        self.epoch, self.resumption, self.current = epoch, resumption, None

    def finish_epoch(self) -> None:
        """Go to the next epoch, of which nothing has been drawn or read."""
        self.choose_epoch(self.epoch + 1)

    def choose_epoch(self, epoch: int) -> None:
        """Go to ``epoch``. The position is kept if it is the current one."""
        if epoch != self.epoch:
            self.resumption = self.current = None
        self.epoch = epoch

    def detached(self) -> Progress:
        """Return the same without the pass, for another process."""
        return Progress(self.epoch, self.resumption)

    @property
    def position(self) -> Position:
        """How much of the epoch has been read."""
        if self.resumption is not None:
            return self.resumption.position
        return START if self.current is None else self.current.position

    @property
    def is_within_epoch(self) -> bool:
        """Whether the next pass resumes an epoch in the middle."""
        return self.resumption is not None and self.resumption.position != START

    def reached(self) -> Resumption:
        """Return what a pass needs to continue."""
        if self.resumption is not None:
            return self.resumption
        return Resumption() if self.current is None else self.current.reached()


def sampled_steps(batches: Iterator[Any], steps: deque[StepInfo]) -> Steps:
    """Describe the steps of map-style data, of which each is known when its batch has been sampled."""
    step = None
    for batch in batches:
        if steps:  # else the class of the user's loader yields more batches than it reads
            step = steps.popleft()
        assert step is not None, "a batch was sampled"
        yield batch, step


def with_states(steps: Steps, read_states: Callable[[], ReadStates]) -> Steps:
    """Keep with each step the states after it, for steps that are read ahead."""
    for batch, step in steps:
        yield batch, replace(step, states=read_states())


def stream_steps(
    batches: Iterator[tuple[Any, Fetched | None]],
    *,
    start: Position,
    step_size: Position,
    ends_alike: bool,
    read_states: Callable[[], ReadStates],
) -> Steps:
    """Describe the steps of a stream. Each is read ahead: only then is it known whether the one before is the last.

    Args:
        batches: The batches, and how they were read.
        start: Where they begin.
        step_size: What one step of all ranks reads.
        ends_alike: Whether all ranks have the same number of batches.
        read_states: Returns the states of data set and loader.
    """
    end, current = start, next(batches, None)
    while current is not None:
        batch, fetched = current
        # Before the next batch is fetched, which has not been read as far as the user is concerned.
        states = read_states()
        following = next(batches, None)
        is_last = following is None
        end = Position(end.samples + step_size.samples, end.batches + step_size.batches)
        shape = None if fetched is None else fetched.shape
        if fetched is not None and fetched.num_samples is not None and step_size.batches == 1:
            shape = full_step(fetched.num_samples, 1)
        ends_some_rank = is_last if ends_alike else None
        # At its end the data set may only now know that the epoch has ended: the state is that at the time of saving.
        yield batch, StepInfo(shape, end, is_last, ends_some_rank, is_last, None if is_last else states)
        current = following


def warn_of_fewer_batches(rank: int, num_read: int, num_of_others: int) -> None:
    """Warn a training loop whose rank has read all its batches, if other ranks have more and would wait for it."""
    if torch.is_grad_enabled() and not current_gradient().joins_uneven_inputs:
        warn_user(
            f"Rank {rank} has read its {num_read} batches, and other ranks have {num_of_others}: the backward pass "
            "of the next one waits for this rank until it times out. Train within `join_uneven_inputs`, or prepare "
            "the loader with `even_batches=True`.",
            main_process_only=False,
        )
