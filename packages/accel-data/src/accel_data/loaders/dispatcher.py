"""The loader of ranks that one of them reads for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from accel_data.dispatch.dealing import NO_BATCH, Dealer
from accel_data.dispatch.messages import Messages, Step
from accel_data.dispatch.source import Read, read_steps, send_steps
from accel_data.loaders.prepared import PreparedLoader
from accel_data.loaders.progress import Resumption
from accel_data.loaders.sharding import index_shard, is_iterable
from accel_data.loaders.unmoved import generators_unmoved
from accel_data.mesh import data_ranks, ranks_of_run
from accel_data.samplers.plan import ShardPlan
from accel_data.samplers.run import START, Position
from accel_ops.transport import current_transport
from accel_state.errors import ConfigError


class DataLoaderDispatcher(PreparedLoader):
    """Read on the main process alone, and hand every rank its part of each step.

    Args:
        dataset: As for `DataLoader`.
        split_batches: Cut each batch into one piece for each rank, instead of giving every rank a batch of
            its own.
        skip_batches: Leave out that many of each rank's batches at the start of each epoch.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        slice_fn: Cuts a batch, called like `slice_tensors`.
        torch_device_mesh: Mesh that says which ranks are handed the same.
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
        super().__init__(dataset, use_stateful_dataloader=use_stateful_dataloader, **kwargs)
        ranks = ranks_of_run() if torch_device_mesh is None else data_ranks(torch_device_mesh)
        self._set_up(skip_batches=skip_batches, non_blocking=_non_blocking, iteration=iteration, ranks=ranks)
        self._set_up_dispatch(split_batches=split_batches, even_batches=True, slice_fn=slice_fn)

    @property
    def counts_batches(self) -> bool:
        """False: the rank that reads counts the rows of what it hands out."""
        return False

    def _set_up_dispatch(
        self, *, split_batches: bool, even_batches: bool, slice_fn: Callable[..., Any] | None
    ) -> None:
        self.__dict__.update(split_batches=split_batches, even_batches=even_batches, slice_fn=slice_fn)
        size = self._given_batch_size()
        num_ranks = self.data_ranks.num_ranks
        if split_batches and size is not None and size % num_ranks:
            raise ConfigError(
                "`split_batches` needs a batch size that is a multiple of the number of processes "
                f"({num_ranks}), got {size}. Change the batch size or pass `split_batches=False`."
            )

    def _given_batch_size(self) -> int | None:
        """Batch size of the given loader, None if it has none."""
        base = self.base_dataloader
        shard = index_shard(base)
        return base.batch_size if shard is None or not base._auto_collation else shard.batch_size

    def _dealer(self) -> Dealer:
        size, num_ranks = self._given_batch_size(), self.data_ranks.num_ranks
        rows = size // num_ranks if size is not None and self.split_batches else size
        return Dealer(num_ranks, rows, self.split_batches, self.even_batches and num_ranks > 1, self.slice_fn)

    def _step_size(self) -> Position:
        dealer = self._dealer()
        return Position((dealer.rows or 1) * dealer.num_ranks, dealer.batches_per_step)

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
        shard, dealer = index_shard(self.base_dataloader), self._dealer()
        if shard is None or not shard.can_start_anywhere:
            return None
        ranks = self.data_ranks
        return ShardPlan(
            num_samples=shard.total_samples,
            rows=dealer.rows or 1,
            num_ranks=ranks.num_ranks,
            rank=ranks.rank,
            even=dealer.even,
            drop_last=self._drops_last(),
            start=start,
        )

    def _drops_last(self) -> bool:
        shard = index_shard(self.base_dataloader)
        return self.base_dataloader.drop_last if shard is None else shard.drop_last

    def _read(self) -> Iterator[Any]:
        self._announce_epoch(is_shared=False)
        ranks, base, goes_on = self.data_ranks, self.base_dataloader, self._goes_on()
        messages = Messages(num_ranks=ranks.num_ranks, rank=ranks.rank) if len(ranks.of_world) > 1 else None
        if messages is not None and current_transport().rank != 0:
            self._begin_elsewhere(goes_on=goes_on)
            return self._hand_out(_received(messages))
        is_stateful = self.use_stateful_dataloader and is_iterable(base)
        loader_state = self._loader_state if is_stateful else None
        read = read_steps(
            self._notes.beside(self._read_here(goes_on=goes_on)),
            self._dealer(),
            drop_last=self._drops_last(),
            loader_state=loader_state,
        )
        return self._hand_out(send_steps(read, messages, rank=ranks.rank))

    def _read_here(self, *, goes_on: bool) -> Iterator[Any]:
        """Yield the batches on the rank that reads. The pass begins with the first: an error then is told to
        the others.
        """
        shard = index_shard(self.base_dataloader)
        with generators_unmoved(goes_on):
            if shard is None:
                batches = self._begin_stream_pass(is_whole=True)
            else:
                run = self._begin_index_pass(shard)
                run.steps = deque(maxlen=0)
                batches = self._open(self.base_dataloader)
        yield from batches

    def _begin_elsewhere(self, *, goes_on: bool) -> None:
        """Begin a pass on a rank that is handed its steps.

        It draws what opening the pass draws on the rank that reads: ranks with the same seed keep the same
        random numbers.
        """
        base = self.base_dataloader
        if not goes_on:
            torch.empty((), dtype=torch.int64).random_(generator=base.generator)
            if (shard := index_shard(base)) is not None:
                shard.draw_unread()
        resumption = self._progress.resumption or Resumption()
        start = self._position_after(self.skip_batches) if self.skip_batches else resumption.position
        self._progress.begin_pass(start)

    def _hand_out(self, steps: Iterator[tuple[Step, Read | None]]) -> Iterator[Any]:
        """Yield this rank's pieces, keeping progress and gradient state up to date."""
        progress, rank = self._progress, self.data_ranks.rank
        place = self._placement()
        per_batch, end = self._given_batch_size() or 1, START
        for number, (step, read) in enumerate(steps, start=1):
            if number == 1:
                end = progress.start
                self._foretell_remainder()
            if step.piece is NO_BATCH:
                return
            end = Position(end.samples + step.num_batches * per_batch, end.batches + step.num_batches)
            progress.steps, progress.end = number, end
            if read is not None:
                progress.loader_state = read.loader_state
                for note in read.notes:
                    progress.note_dataset(note)
            self.step_shape = step.shape
            if rank >= step.num_following:
                self.end_of_dataloader = True
                progress.is_complete = not step.num_following
                self.remainder = 0 if step.shape.is_plain else step.shape.num_real
            yield step.piece if place is None else place.finish(place.begin(step.piece))

    def _foretell_remainder(self) -> None:
        """Say from the start whether the last step is going to be filled up, where the length is known."""
        plan = self._plan(self._progress.start.samples)
        if plan is not None:
            self.remainder = plan.remainder
            self.will_pad = plan.even and plan.remainder > 0


def _received(messages: Messages) -> Iterator[tuple[Step, None]]:
    while (step := messages.receive()) is not None:
        yield step, None
        if not step.num_following:
            return
