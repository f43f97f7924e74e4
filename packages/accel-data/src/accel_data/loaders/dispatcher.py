"""The loader of ranks for which the main process reads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from accel_data.dispatch.messages import Messages, OwnStep
from accel_data.dispatch.scatter import NO_BATCH, ScatterPlan
from accel_data.dispatch.source import ReadStep, read_steps, send_steps
from accel_data.loaders.adapter import build_loader
from accel_data.loaders.fork_rng import fork_rng
from accel_data.loaders.prepared import PreparedLoader
from accel_data.loaders.progress import Resumption
from accel_data.loaders.reader import Batches
from accel_data.loaders.reading import warn_of_fewer_batches
from accel_data.loaders.sharding import index_shard, is_iterable
from accel_data.mesh import data_ranks, ranks_of_run
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.position import START, Position
from accel_data.step import rows_of_rank
from accel_ops.transport import current_transport


class DataLoaderDispatcher(PreparedLoader):
    """Read on the main process alone, and send every rank its part of each step.

    Args:
        dataset: As for `DataLoader`.
        split_batches: Cut each batch into one piece for each rank, instead of giving every rank a batch of
            its own.
        skip_batches: Leave out that many of each rank's batches at the start of each epoch.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        slice_fn: Cuts a batch, called like `slice_tensors`.
        torch_device_mesh: Mesh that says which ranks are sent the same.
        iteration: The epoch to begin with.
        **kwargs: As for `DataLoader`.

    Raises:
        ConfigError: If a batch cannot be split evenly.
    """

    split_batches: bool
    even_batches: bool
    slice_fn: Callable[..., Any] | None
    _reads_by_plan: ClassVar[bool] = False

    def __init__(
        self,
        dataset: Any,
        split_batches: bool = False,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        slice_fn: Callable[..., Any] | None = None,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ) -> None:
        self._wrap(
            build_loader(dataset, use_stateful_dataloader, **kwargs),
            skip_batches=skip_batches,
            non_blocking=_non_blocking,
            iteration=iteration,
            ranks=ranks_of_run() if torch_device_mesh is None else data_ranks(torch_device_mesh),
            split_batches=split_batches,
            slice_fn=slice_fn,
        )

    def _wrap(
        self,
        base: DataLoader[Any],
        *,
        split_batches: bool = False,
        even_batches: bool = True,
        slice_fn: Callable[..., Any] | None = None,
        **options: Any,
    ) -> None:
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.slice_fn = slice_fn
        super()._wrap(base, **options)
        self._scatter_plan()  # refuses a batch size that cannot be split

    @property
    def counts_batches(self) -> bool:
        """False: the main process counts the rows of what it sends."""
        return False

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        return self._scatter_plan().rows

    def _given_batch_size(self) -> int | None:
        """Batch size of the given loader, None if it has none."""
        base = self.base_dataloader
        shard = index_shard(base)
        return base.batch_size if shard is None or not base._auto_collation else shard.batch_size

    def _scatter_plan(self) -> ScatterPlan:
        num_ranks = self.data_ranks.num_ranks
        rows = rows_of_rank(self._given_batch_size(), num_ranks, split_batches=self.split_batches)
        return ScatterPlan(
            num_ranks, rows, self.split_batches, self.even_batches and num_ranks > 1, self.slice_fn
        )

    def _step_size(self) -> Position:
        plan = self._scatter_plan()
        return Position((plan.rows or 1) * plan.num_ranks, plan.batches_per_step)

    def __len__(self) -> int:
        plan, ranks = self._plan(), self.data_ranks
        if plan is not None:
            return max(0, plan.num_own_steps - self.skip_batches)
        batches = len(self.base_dataloader)
        full, rest = (batches, 0) if self.split_batches else divmod(batches, ranks.num_ranks)
        if rest and not self._drops_last():
            full += self.even_batches or ranks.rank < rest
        return max(0, full - self.skip_batches)

    def _plan(self, start: int = 0) -> ShardPlan | None:
        """Return the arithmetic of an epoch from sample ``start`` on, where its length is known."""
        shard, scatter = index_shard(self.base_dataloader), self._scatter_plan()
        if shard is None or not shard.can_start_anywhere:
            return None
        ranks = self.data_ranks
        return ShardPlan(
            num_samples=shard.total_samples,
            rows=scatter.rows or 1,
            num_ranks=ranks.num_ranks,
            rank=ranks.rank,
            even=scatter.even,
            drop_last=self._drops_last(),
            start=start,
        )

    def _drops_last(self) -> bool:
        shard = index_shard(self.base_dataloader)
        return self.base_dataloader.drop_last if shard is None else shard.drop_last

    def _read(self) -> Iterator[Any]:
        self._announce_epoch(is_shared=False)
        ranks, base, is_resumed = self.data_ranks, self.base_dataloader, self._is_resumed()
        messages = Messages(num_ranks=ranks.num_ranks, rank=ranks.rank) if len(ranks.of_world) > 1 else None
        if messages is not None and current_transport().rank != 0:
            self._begin_receiving(is_resumed=is_resumed)
            return self._yield_own(_received(messages))
        is_stateful = self.use_stateful_dataloader and is_iterable(base)
        steps = read_steps(
            self._read_batches(is_resumed=is_resumed),
            self._scatter_plan(),
            drop_last=self._drops_last(),
            loader_state=self._loader_state if is_stateful else None,
        )
        if is_iterable(base):
            steps = islice(steps, self.skip_batches, None)
        return self._yield_own(send_steps(steps, messages, rank=ranks.rank))

    def _read_batches(self, *, is_resumed: bool) -> Batches:
        """Yield the batches, on the main process.

        The pass begins when the first is asked for, so that the other ranks are told of an error.
        """
        shard = index_shard(self.base_dataloader)
        with fork_rng(enabled=is_resumed):
            if shard is None:
                batches = self._begin_stream_pass(is_whole=True)
            else:
                sampler_pass, batches = self._begin_index_pass(shard, has_metadata=True)
                sampler_pass.steps = deque(maxlen=0)
        yield from batches

    def _begin_receiving(self, *, is_resumed: bool) -> None:
        """Begin a pass on a rank that does not read.

        It draws what the main process draws when it begins the pass, so ranks with the same seed keep the same
        random numbers.
        """
        base = self.base_dataloader
        if not is_resumed:
            torch.empty((), dtype=torch.int64).random_(generator=base.generator)
            if (shard := index_shard(base)) is not None:
                shard.order_source.advance_default_generator()
        resumption = self._progress.resumption or Resumption()
        start = self._position_after(self.skip_batches) if self.skip_batches else resumption.position
        self._progress.begin_pass(start)

    def _yield_own(self, steps: Iterator[tuple[OwnStep, ReadStep | None]]) -> Iterator[Any]:
        """Yield this rank's batches, keeping progress and gradient state up to date."""
        progress, rank = self._progress, self.data_ranks.rank
        place = self._placement()
        per_batch, end = self._given_batch_size() or 1, START
        for number, (step, read) in enumerate(steps, start=1):
            if number == 1:
                end = progress.start
                self._predict_remainder()
            if step.piece is NO_BATCH:
                warn_of_fewer_batches(rank, number - 1, number)
                return
            end = Position(end.samples + step.num_batches * per_batch, end.batches + step.num_batches)
            progress.steps, progress.end = number, end
            if read is not None:
                progress.loader_state = read.loader_state
                for metadata in read.metadata:
                    progress.update_dataset(metadata)
            self.step_shape = step.shape
            self.ends_some_rank = step.num_following < self.data_ranks.num_ranks
            if rank >= step.num_following:
                self.end_of_dataloader = True
                progress.is_complete = not step.num_following
                self.remainder = step.shape.remainder(self.rows_of_full_batch)
            yield step.piece if place is None else place.finish(place.begin(step.piece))

    def _predict_remainder(self) -> None:
        """Set at the first step what is known of the last one, if the length is known."""
        plan = self._plan(self._progress.start.samples)
        if plan is not None:
            self.remainder = plan.remainder
            self.will_pad = plan.even and plan.remainder > 0


def _received(messages: Messages) -> Iterator[tuple[OwnStep, None]]:
    while (step := messages.receive()) is not None:
        yield step, None
        if not step.num_following:
            return
