"""How far a loader has been read, over epochs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accel_data.batch_metadata import BatchMetadata
from accel_data.loaders.worker_states import WorkerStates
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.position import START, Position
from accel_data.samplers.sampler_pass import SamplerPass


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
        num_workers: Workers that have read the stream so far.
        num_ranks: Ranks that have read the epoch so far.
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
    """How far a loader has been read. Loaders made from it by skipping share it, so they count the same epochs.

    Args:
        epoch: The epoch that is being read, or comes next.
        resumption: Set while the next pass is to begin elsewhere than at the start of the epoch.
        sampler_pass: The pass over a sampler that is under way or was left early.
        plan: The arithmetic of the pass, where this rank's steps follow from it.
        start: Where the pass began.
        steps: Steps of the pass that this rank has yielded.
        end: Where the last yielded step ended, if there is no plan.
        order_state: State of the generator that the order of a stream is drawn from.
        dataset_state: State of the data set after the last yielded step, where more may have been read since.
        loader_state: State of a `StatefulDataLoader` after the last yielded step.
        worker_states: States of the workers' copies of the data set after the last yielded step.
        is_complete: Whether the last yielded step is known to be the last of a stream.
    """

    epoch: int = 0
    resumption: Resumption | None = None
    sampler_pass: SamplerPass | None = None
    plan: ShardPlan | None = None
    start: Position = START
    steps: int = 0
    end: Position = START
    order_state: torch.Tensor | None = None
    dataset_state: Any = None
    loader_state: Any = None
    worker_states: WorkerStates | None = None
    is_complete: bool = False

    def begin_pass(
        self,
        start: Position,
        *,
        sampler_pass: SamplerPass | None = None,
        plan: ShardPlan | None = None,
        order_state: torch.Tensor | None = None,
    ) -> None:
        """Begin a pass at ``start``."""
        self.resumption = None
        self.sampler_pass = sampler_pass
        self.plan = plan
        self.start = self.end = start
        self.steps = 0
        self.order_state = order_state
        self.dataset_state = self.loader_state = None
        if self.worker_states is not None:
            self.worker_states = self.worker_states.after_pass()
        self.is_complete = False

    def drawn_order_state(self) -> torch.Tensor | None:
        """Return the state that the order of the epoch was drawn from, None if it has not been drawn."""
        if self.resumption is not None and self.resumption.order_state is not None:
            return self.resumption.order_state
        if self.sampler_pass is not None and self.sampler_pass.has_drawn:
            return self.sampler_pass.order_state
        return self.order_state

    def update_dataset(self, metadata: BatchMetadata) -> None:
        """Keep the state that the data set, or a worker's copy of it, had after a batch that is yielded."""
        if metadata.worker is None:
            self.dataset_state = metadata.dataset_state
        elif self.worker_states is not None:
            self.worker_states.update(metadata.worker, metadata.dataset_state, is_last=metadata.is_last)

    def finish_epoch(self) -> None:
        """Go to the next epoch, of which nothing has been drawn or read."""
        self.begin_pass(START)
        self.epoch += 1

    def choose_epoch(self, epoch: int) -> None:
        """Go to ``epoch``. The position is kept if it is the current one."""
        if epoch != self.epoch:
            self.begin_pass(START)
        self.epoch = epoch

    @property
    def is_within_epoch(self) -> bool:
        """Whether the next pass resumes an epoch in the middle."""
        return self.resumption is not None and self.resumption.position != START

    def current(self) -> Resumption:
        """Return what a pass needs to begin where this one stands."""
        if self.resumption is not None:
            return self.resumption
        workers = self.worker_states
        return Resumption(
            position=self._position(),
            dataset_state=self.dataset_state,
            loader_state=self.loader_state,
            worker_states=None if workers is None else workers.in_turn(),
            stream_workers=None if workers is None else workers.of_stream(),
            is_complete=self.is_complete,
        )

    def _position(self) -> Position:
        if self.plan is None or self.sampler_pass is None:
            return self.end
        batches = self.start.batches + self.steps * self.sampler_pass.batches_per_step
        return Position(self.plan.consumed(self.steps), batches)
