"""The batches, or the single indices, of one rank."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from torch.utils.data import BatchSampler, Sampler

from accel_data.delegation import Delegating
from accel_data.samplers.order import EpochOrder, check_same_order, flat_sampler_of, is_finite
from accel_data.step import NO_BATCH, START, Position, ShardPlan, StepInfo, StreamSharding
from accel_state.errors import ConfigError


def rows_of_rank(batch_size: int | None, num_ranks: int, *, split_batches: bool) -> int | None:
    """Return the rows of one rank in a full step, None if the batch size is not known.

    Raises:
        ConfigError: If a batch cannot be split evenly.
    """
    if batch_size is None or not split_batches:
        return batch_size
    if batch_size % num_ranks:
        raise ConfigError(
            "`split_batches` needs a batch size that is a round multiple of the number of processes "
            f"({num_ranks}), got {batch_size}. Change the batch size or pass `split_batches=False`."
        )
    return batch_size // num_ranks


class BatchSamplerWrapper(Delegating, BatchSampler):
    """A batch sampler that yields a part of another one. Other attributes are read from the other one.

    Args:
        batch_sampler: Yields lists of indices. Its ``batch_size`` and ``drop_last`` are used if it has them.
    """

    _wrapped_in = "batch_sampler"

    def __init__(self, batch_sampler: BatchSampler | Iterable[list[int]]) -> None:
        self.batch_sampler = batch_sampler

    @property  # type: ignore[override]
    def batch_size(self) -> int | None:
        """Batch size of the given sampler, None if it has none."""
        return getattr(self.batch_sampler, "batch_size", None)

    @batch_size.setter
    def batch_size(self, batch_size: int) -> None:
        self.batch_sampler.batch_size = batch_size  # type: ignore[union-attr]

    @property
    def drop_last(self) -> bool:  # type: ignore[override]
        """Whether the given sampler omits a short last batch."""
        return bool(getattr(self.batch_sampler, "drop_last", False))

    @property
    def total_length(self) -> int:
        """Batches of the given sampler."""
        return len(self.batch_sampler)  # type: ignore[arg-type]


class BatchSamplerShard(BatchSamplerWrapper):
    """Yield the batches of one rank, so that all ranks together read the given batches in their order.

    On two processes, with batches ``[0, 1, 2, 3], [4, 5, 6, 7]``, process 0 yields ``[0, 1, 2, 3]`` and
    process 1 ``[4, 5, 6, 7]``; with ``split_batches`` process 0 yields ``[0, 1], [4, 5]`` and process 1 ``[2,
    3], [6, 7]``. Other attributes are read from the given batch sampler.

    Args:
        batch_sampler: Yields lists of indices. Its ``batch_size`` and ``drop_last`` are used if it has
            them. With ``drop_last`` only steps with a full batch for every rank are kept.
        num_processes: Ranks that share the batches.
        process_index: The rank of this shard.
        split_batches: Split each batch into one piece for each rank, instead of distributing full batches.
        even_batches: Complete the last step with samples from the start, so that all ranks get equally
            many, equally large batches; with the first batches, if the batch sampler has no ``batch_size``. May be
            set between epochs.

    Raises:
        ConfigError: If a batch cannot be split evenly, or is to be made even without a ``batch_size``.
    """

    def __init__(
        self,
        batch_sampler: BatchSampler | Iterable[list[int]],
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        even_batches: bool = True,
    ) -> None:
        size = getattr(batch_sampler, "batch_size", None)
        rows_of_rank(size, num_processes, split_batches=split_batches)
        if not 0 <= process_index < num_processes:
            raise ConfigError(
                f"`process_index` must lie between 0 and {num_processes - 1}, got {process_index}."
            )
        if size is None and even_batches and split_batches:
            raise ConfigError(
                "`split_batches` with `even_batches` needs a batch sampler with a `batch_size`, and this one has none. "
                "Pass `split_batches=False`, or set the attribute on the batch sampler."
            )
        super().__init__(batch_sampler)
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches

    @property
    def rows_per_rank(self) -> int | None:
        """Rows of one rank in a full step, None if they vary."""
        return rows_of_rank(self.batch_size, self.num_processes, split_batches=self.split_batches)

    @property
    def batches_per_step(self) -> int:
        """Batches of the given sampler that all ranks read together in one step."""
        return 1 if self.split_batches else self.num_processes

    def __len__(self) -> int:
        if self.split_batches:
            # A batch shorter than its share leaves the later ranks without a piece.
            plan = self.plan()
            return self.total_length if plan is None else plan.num_local_steps
        rounds, rest = divmod(self.total_length, self.num_processes)
        if self.drop_last or not rest:
            return rounds
        return rounds + (self.even_batches or self.process_index < rest)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.new_pass())

    def new_pass(self, start: Position = START, order: EpochOrder | None = None) -> SamplerPass:
        """Return a pass from ``start`` on.

        Args:
            start: Its first position.
            order: Its order. None: the next order that the samplers draw.
        """
        return SamplerPass(self, start, order or EpochOrder())

    def position_after(self, steps: int) -> Position:
        """Return the position in the epoch after ``steps`` batches of every rank."""
        plan, batches = self.plan(), steps * self.batches_per_step
        samples = batches * (self.batch_size or 0) if plan is None else plan.consumed(steps)
        return Position(samples, batches)

    def plan(self, start: Position = START) -> ShardPlan | None:
        """Return the arithmetic of a pass from ``start`` on; None if a pass cannot start anywhere."""
        sampler = flat_sampler_of(self.batch_sampler)
        if not is_finite(sampler):
            return None
        rows = self.rows_per_rank
        assert rows is not None, "torch's batch sampler has a batch size"
        return ShardPlan(
            num_samples=len(sampler),
            rows=rows,
            num_ranks=self.num_processes,
            rank=self.process_index,
            even=self.even_batches,
            drop_last=self.drop_last,
            start=start.samples,
        )


class IndexSamplerShard(Sampler[int]):
    """Yield every ``num_processes``-th index of ``sampler``, for loaders with ``batch_size=None``.

    Args:
        sampler: Yields indices.
        num_processes: Ranks that share the indices.
        process_index: The rank of this shard.
        even_batches: Repeat indices from the start, so that all ranks get equally many.
    """

    def __init__(
        self, sampler: Iterable[int], *, num_processes: int, process_index: int, even_batches: bool = True
    ) -> None:
        single = BatchSampler(sampler, batch_size=1, drop_last=False)
        self.batch_sampler = BatchSamplerShard(
            single, num_processes, process_index, even_batches=even_batches
        )

    def __iter__(self) -> Iterator[int]:
        return (index for (index,) in iter(self.batch_sampler))

    def __len__(self) -> int:
        return len(self.batch_sampler)


class SamplerPass:
    """One pass: draws the order and yields this rank's batches. Iterate it once.

    Args:
        shard: The shard to read, with its present settings.
        start: The first position of the pass.
        order: The order, which is drawn with the first batch. If other ranks share it, that draw is a collective: every
            rank must request the first batch.

    Attributes:
        plan: The arithmetic of the pass, if it can start anywhere.
        steps: The steps that were sampled and not yet yielded by the loader, oldest first.
        num_missed: At the end: steps of other ranks without a batch for this one.
    """

    def __init__(self, shard: BatchSamplerShard, start: Position, order: EpochOrder) -> None:
        self.plan = shard.plan(start)
        self.steps: deque[StepInfo] = deque()
        self.num_missed = 0
        self._shard = shard
        #: The iterated object: the sampler, if its indices are split into batches as torch does.
        self._sampler = flat_sampler_of(shard.batch_sampler)
        self._iterated = shard.batch_sampler if self._sampler is None else self._sampler
        self._order = order
        self._start = start
        self._rank = shard.process_index
        self._sharding = StreamSharding(
            num_ranks=shard.num_processes,
            rows=shard.rows_per_rank,
            split=shard.split_batches,
            even=shard.even_batches,
            drop_last=shard.drop_last,
            source=type(self._iterated).__name__,
        )

    def __iter__(self) -> Iterator[list[int]]:
        for indices, step in self._sampled() if self.plan is None else self._planned(self.plan):
            self.steps.append(step)
            yield indices
        if self.plan is not None:
            self.num_missed = self.plan.num_steps - self.plan.num_local_steps

    def _planned(self, plan: ShardPlan) -> Iterator[tuple[list[int], StepInfo]]:
        per_step = self._sharding.batches_per_step
        return plan.steps(
            self._order.indices(self._sampler), first_batch=self._start.batches, batches_per_step=per_step
        )

    def _sampled(self) -> Iterator[tuple[list[int], StepInfo]]:
        end, rank = self._start, self._rank
        with self._order.drawing():
            batches, first = self._remaining_batches()
            # Inside `drawing`, so that random numbers of the first batch are drawn as in plain PyTorch.
            started = list(islice(batches, self._sharding.num_ranks))
        if self._order.is_shared and not self._is_synchronized:
            check_same_order(self._iterated, started)
        batches = chain(started, self._order.isolated(batches))
        for step in self._sharding.steps(batches, first=first):
            end = Position(end.samples + step.shape.num_samples, end.batches + step.num_batches)
            if step.pieces[rank] is NO_BATCH:
                self.num_missed = 1
                return
            yield step.pieces[rank], step.seen_by(rank, end=end)

    def _remaining_batches(self) -> tuple[Iterator[list[int]], list[Any]]:
        """Return the batches after the start, and the first samples or batches of the epoch before it."""
        start, num_first = self._start, self._sharding.num_first
        batch_sampler: Any = self._shard.batch_sampler
        if self._sampler is not None:
            indices = iter(self._sampler)
            first = list(islice(indices, min(num_first, start.samples)))
            skip = start.samples - len(first)
            next(islice(indices, skip, skip), None)
            return iter(BatchSampler(indices, batch_sampler.batch_size, batch_sampler.drop_last)), first
        remaining, first = iter(batch_sampler), []
        for batch in islice(remaining, start.batches):
            first += ([batch] if self._sharding.rows is None else batch)[: max(0, num_first - len(first))]
        return remaining, first

    @property
    def _is_synchronized(self) -> bool:
        """Whether all samplers draw from user-provided generators, which are synchronized."""
        batch_sampler = self._shard.batch_sampler
        return hasattr(self._iterated, "generator") and all(
            getattr(each, "generator", self) is not None
            for each in (getattr(batch_sampler, "sampler", None), batch_sampler)
        )
