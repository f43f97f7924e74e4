"""One pass over the batches of one rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch.utils.data import BatchSampler

from accel_data.samplers.order import draw_order, draw_seed
from accel_data.samplers.order_source import OrderSource, PassGenerator
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.position import START, Position
from accel_data.samplers.shared_order import check_same_order
from accel_data.samplers.stream import StreamSharding
from accel_data.step import StepShape
from accel_ops.random import synchronize_rng_states
from accel_state.enums import RNGType

#: Indices of an order given as a list that the ranks compare.
_NUM_COMPARED = 1024


@dataclass(frozen=True, slots=True)
class SampledStep:
    """What is known about a step of a pass without a plan.

    Args:
        shape: Its rows.
        is_last: Whether it is this rank's last.
        ends_some_rank: Whether it is the last of any rank.
        end: Where it ends.
    """

    shape: StepShape
    is_last: bool
    ends_some_rank: bool
    end: Position


class SamplerPass:
    """One pass: draws the order and yields this rank's batches. Iterate it once.

    Args:
        source: What the order is drawn from.
        sharding: How batches are distributed if there is no plan.
        rank: This rank.
        plan: The arithmetic of the pass, where the order can be entered anywhere.
        start: Where the pass begins.
        order_state: State of the generator to draw the order from. None: its current state.
        is_shared: Whether other ranks read by the same order. The ranks agree on it at the first batch, for which
            all of them have to ask.

    Attributes:
        order_state: State of the generator before the order was drawn, once it has been.
        has_drawn: Whether the order has been drawn.
        misses_last_step: Without a plan: whether this rank has no batch in the last step of the others.
        steps: Without a plan: steps that were sampled and not yet yielded by the loader, oldest first.
    """

    def __init__(
        self,
        source: OrderSource,
        sharding: StreamSharding,
        *,
        rank: int = 0,
        plan: ShardPlan | None = None,
        start: Position = START,
        order_state: torch.Tensor | None = None,
        is_shared: bool = False,
    ) -> None:
        self.plan = plan
        self.start = start
        self.order_state = order_state
        self.has_drawn = self.misses_last_step = False
        self.steps: deque[SampledStep] = deque()
        self._source = source
        self._sharding = sharding
        self.rank = rank
        self._is_shared = is_shared

    @property
    def batches_per_step(self) -> int:
        """Batches of the user's sampler in one step."""
        return self._sharding.batches_per_step

    def __iter__(self) -> Iterator[list[int]]:
        return self._sampled() if self.plan is None else self._planned(self.plan)

    def _planned(self, plan: ShardPlan) -> Iterator[list[int]]:
        order = self._draw_order()
        if self._is_shared and isinstance(self._source.flat_sampler, (list, tuple)):
            check_same_order(self._source.flat_sampler, order[:_NUM_COMPARED])
        for step in range(plan.num_own_steps):
            yield plan.indices(order, step)
        finish = getattr(order, "finish", None)
        if finish is not None:
            finish()

    def _draw_order(self) -> Sequence[int]:
        is_fresh = self.order_state is None
        generator = self._begin_draw()
        order = draw_order(self._source.flat_sampler, generator)
        assert order is not None, "a plan is made where the order is known"
        if (
            is_fresh
            and generator is not None
            and self.order_state is not None
            and torch.equal(torch.get_rng_state(), self.order_state)
        ):
            # The sampler would have drawn all of it from the default generator.
            torch.set_rng_state(generator.get_state())
        return order

    def _begin_draw(self) -> PassGenerator | None:
        """Keep the state that the order is drawn from, and return what replaces torch's default generator.

        None: the sampler has a generator of its own, or takes none.
        """
        self.has_drawn = True
        source, generator = self._source, self._source.generator
        if generator is not None:
            if self.order_state is None:
                self.order_state = generator.get_state()
            else:
                generator.set_state(self.order_state)
            return None
        if not source.draws_from_default:
            return None
        if self.plan is None and not self._is_shared and not source.seeds_itself:
            return None  # only the sampler knows how it draws from the default generator
        replacement = PassGenerator()
        if self.order_state is not None:
            replacement.set_state(self.order_state)
            return replacement
        if self.plan is None or source.seeds_itself:
            replacement.manual_seed(draw_seed())
        else:
            replacement.set_state(torch.get_rng_state())
        if self._is_shared:
            synchronize_rng_states([RNGType.GENERATOR], replacement)
        self.order_state = replacement.get_state()
        return replacement

    def _sampled(self) -> Iterator[list[int]]:
        replacement = self._begin_draw()
        if replacement is None:
            yield from self._sampled_steps()
            return
        with self._source.drawing_from(replacement):
            yield from self._sampled_steps()

    def _sampled_steps(self) -> Iterator[list[int]]:
        end, num_ranks = self.start, self._sharding.num_ranks
        batches, first = self._remaining_batches()
        if self._is_shared and not self._source.is_synchronized:
            compared = list(islice(batches, num_ranks))
            check_same_order(self._source.iterated, compared)
            batches = chain(compared, batches)
        for step in self._sharding.steps(batches, first=first):
            end = Position(end.samples + step.shape.num_samples, end.batches + step.num_batches)
            if not step.pieces[self.rank]:
                self.misses_last_step = True
                return
            following = step.num_following
            self.steps.append(SampledStep(step.shape, self.rank >= following, following < num_ranks, end))
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
