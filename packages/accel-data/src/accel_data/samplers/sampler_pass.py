"""One pass over the batches of one rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import BatchSampler

from accel_data.samplers.order import EpochOrder, OrderSource, OrderState, check_same_order
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.stream import StreamSharding
from accel_data.step import NO_BATCH, START, Position, StepInfo


class SamplerPass:
    """One pass: draws the order and yields this rank's batches. Iterate it once.

    Args:
        source: What the order is drawn from.
        sharding: How batches are distributed if there is no plan.
        rank: This rank.
        plan: The arithmetic of the pass, where it can start anywhere.
        start: Where the pass begins.
        order_state: State to draw the order from. None: the current one.
        is_shared: Whether other ranks read by the same order. The ranks agree on it at the first batch, for which
            all of them have to ask.

    Attributes:
        order: The order, which is drawn with the first batch.
        steps: What is known of the steps that were sampled and not yet yielded by the loader, oldest first.
        num_missed: At the end: steps of other ranks in which this one has no batch.
    """

    def __init__(
        self,
        source: OrderSource,
        sharding: StreamSharding,
        *,
        rank: int = 0,
        plan: ShardPlan | None = None,
        start: Position = START,
        order_state: OrderState | None = None,
        is_shared: bool = False,
    ) -> None:
        self.plan = plan
        self.start = start
        self.rank = rank
        self.order = EpochOrder(source, order_state, is_shared=is_shared)
        self.steps: deque[StepInfo] = deque()
        self.num_missed = 0
        self._source = source
        self._sharding = sharding
        self._is_shared = is_shared

    def __iter__(self) -> Iterator[list[int]]:
        return self._sampled() if self.plan is None else self._planned(self.plan)

    def _planned(self, plan: ShardPlan) -> Iterator[list[int]]:
        order = self.order.indices()
        steps = plan.steps(first_batch=self.start.batches, batches_per_step=self._sharding.batches_per_step)
        for number, step in enumerate(steps):
            self.steps.append(step)
            yield plan.indices(order, number)
        self.num_missed = plan.num_steps - plan.num_local_steps

    def _sampled(self) -> Iterator[list[int]]:
        end = self.start
        with self.order.drawing():
            batches, first = self._remaining_batches()
            # What is drawn with the first batch is drawn as in plain PyTorch.
            begun = list(islice(batches, self._sharding.num_ranks))
        if self._is_shared and not self._source.is_synchronized:
            check_same_order(self._source.iterated, begun)
        batches = chain(begun, self.order.isolated(batches))
        for step in self._sharding.steps(batches, first=first):
            end = Position(end.samples + step.shape.num_samples, end.batches + step.num_batches)
            if step.pieces[self.rank] is NO_BATCH:
                self.num_missed = 1
                return
            self.steps.append(step.seen_by(self.rank, end=end))
            yield step.pieces[self.rank]

    def _remaining_batches(self) -> tuple[Iterator[list[int]], list[Any] | None]:
        """Return the batches after the start, and the first samples or batches of the epoch if they come before it."""
        flat = self._source.flat_sampler
        batch_sampler: Any = self._source.batch_sampler
        num_first = self._sharding.num_first
        if flat is not None:
            indices = iter(flat)
            first = list(islice(indices, min(num_first, self.start.samples)))
            skip = self.start.samples - len(first)
            next(islice(indices, skip, skip), None)
            batches = BatchSampler(indices, batch_sampler.batch_size, batch_sampler.drop_last)
            return iter(batches), first or None
        remaining = iter(batch_sampler)
        first = []
        for batch in islice(remaining, self.start.batches):
            first += ([batch] if self._sharding.rows is None else batch)[: max(0, num_first - len(first))]
        return remaining, first or None
