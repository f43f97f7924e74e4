"""How far a loader has been read, over epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accel_data.loaders.tagging import Note
from accel_data.loaders.worker_states import WorkerStates
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.run import START, Position, SamplerRun


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where the next pass begins.

    Args:
        position: The first sample that has not been read.
        order_state: State of the generator that the order of the epoch is drawn from.
        dataset_state: State of a stream at that place, which then need not be replayed.
        loader_state: State of a `StatefulDataLoader` at that place.
        worker_states: States of the workers' copies of map-style data, in the order of their turns.
        stream_workers: States of the workers' copies of a stream, and whose turn it is.
        num_workers: Workers that read the stream.
        num_ranks: Ranks that had read the epoch so far.
        is_complete: Whether the stream is known to have ended there.
    """

    position: Position = START
    order_state: torch.Tensor | None = None
    dataset_state: Any = None
    loader_state: Any = None
    worker_states: list[Any] | None = None
    stream_workers: dict[str, Any] | None = None
    num_workers: int | None = None
    num_ranks: int = 1
    is_complete: bool = False


@dataclass(slots=True)
class Progress:
    """Shared by a loader and those made from it by skipping, so that they count the same epochs.

    Args:
        epoch: The epoch that is being read, or comes next.
        resumption: Set while the next pass is to begin elsewhere than at the start of the epoch.
        run: The pass over a sampler under way, or left early.
        plan: The arithmetic of the pass, where this rank's steps follow from it.
        start: Where the pass began.
        steps: Steps of the pass that this rank has yielded.
        end: Where the last yielded step ended, where the pass is not a matter of arithmetic.
        dataset_state: State of the data set after the last yielded step, where it may have been read further.
        loader_state: State of a `StatefulDataLoader` after the last yielded step.
        worker_states: States of the workers' copies of the data set after the last yielded step.
        is_complete: Whether the last yielded step is known to be the last of a stream.
    """

    epoch: int = 0
    resumption: Resumption | None = None
    run: SamplerRun | None = None
    plan: ShardPlan | None = None
    start: Position = START
    steps: int = 0
    end: Position = START
    dataset_state: Any = None
    loader_state: Any = None
    worker_states: WorkerStates | None = None
    is_complete: bool = False

    def begin_pass(
        self, start: Position, run: SamplerRun | None = None, plan: ShardPlan | None = None
    ) -> None:
        """Note that a pass begins at ``start``."""
        self.resumption = None
        self.run = run
        self.plan = plan
        self.start = self.end = start
        self.steps = 0
        self.dataset_state = self.loader_state = None
        if self.worker_states is not None:
            self.worker_states = self.worker_states.after_pass()
        self.is_complete = False

    def note_dataset(self, note: Note) -> None:
        """Note the state that the data set, or a worker's copy of it, was in after a batch that was handed out."""
        if note.worker is None:
            self.dataset_state = note.dataset_state
        elif self.worker_states is not None:
            self.worker_states.note(note.worker, note.dataset_state, is_last=note.is_last)

    def finish_epoch(self) -> None:
        """Go on to the next epoch, whose order has not been drawn and of which nothing has been read."""
        self.begin_pass(START)
        self.epoch += 1

    def choose_epoch(self, epoch: int) -> None:
        """Go to ``epoch``. A resumption is kept if it belongs to it."""
        if epoch != self.epoch:
            self.begin_pass(START)
        self.epoch = epoch

    @property
    def is_within_epoch(self) -> bool:
        """Whether the next pass goes on with an epoch that was begun before."""
        return self.resumption is not None and self.resumption.position != START

    def position(self) -> Position:
        """Return how far the epoch has been read."""
        if self.resumption is not None:
            return self.resumption.position
        if self.plan is not None and self.run is not None:
            batches = self.start.batches + self.steps * self.run.step_batches
            return Position(self.plan.consumed(self.steps), batches)
        return self.end
