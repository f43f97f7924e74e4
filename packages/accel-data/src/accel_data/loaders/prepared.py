"""What all prepared loaders have in common: epochs, a position, a state, and a device."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
from torch.utils.data import DataLoader

from accel_data.loaders.adapter import DataLoaderAdapter
from accel_data.loaders.agreement import agree_on_order
from accel_data.loaders.cloning import clone_loader, from_attributes
from accel_data.loaders.epochs import batches_field, get_sampler, set_epoch, set_sampler
from accel_data.loaders.fork_rng import fork_rng
from accel_data.loaders.placement import Placement, placement
from accel_data.loaders.progress import Progress, Resumption
from accel_data.loaders.reader import Batches, Reader
from accel_data.loaders.saving import load_progress, save_progress
from accel_data.loaders.sharding import index_shard, is_iterable, shard_indices
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.loaders.streams import StreamOpener, has_state, stream_of, warn_of_replay
from accel_data.loaders.worker_states import WorkerStates, restore_workers
from accel_data.mesh import DataRanks, all_different
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_data.samplers.position import START, Position
from accel_data.samplers.sampler_pass import SamplerPass
from accel_data.stateful import has_position
from accel_ops.objects import broadcast_object_list
from accel_state.enums import RNGType


class PreparedLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """Base of the loaders that `prepare_data_loader` returns.

    Attributes:
        data_ranks: Which ranks read the same data.
        device: Where the batches go, None if they stay where they are.
        rng_types: Generators that are synchronised at the start of each epoch.
        skip_batches: Batches that are left out at the start of each epoch.
        synchronized_generator: The generator that the order is drawn from.
        keeps_dataset_state: Whether a data set with `state_dict` has its state copied after each batch. Without, a
            resumed stream is read again from the start of its epoch up to the position.
    """

    data_ranks: DataRanks
    device: torch.device | None
    rng_types: Sequence[str | RNGType] | None
    skip_batches: int
    synchronized_generator: torch.Generator | None
    keeps_dataset_state: bool = True
    _non_blocking: bool
    _progress: Progress
    _reader: Reader | None

    #: Whether the sampler's plan says what this rank gets at each step.
    _reads_by_plan: ClassVar[bool] = True

    def _wrap(
        self,
        base: DataLoader[Any],
        *,
        device: torch.device | None = None,
        rng_types: Sequence[str | RNGType] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        non_blocking: bool = False,
        iteration: int = 0,
        ranks: DataRanks | None = None,
    ) -> None:
        self.data_ranks = ranks or all_different(1, 0)
        self.device = device
        self.rng_types = rng_types
        self.synchronized_generator = synchronized_generator
        self.skip_batches = skip_batches
        self._non_blocking = non_blocking
        self._progress = Progress(epoch=iteration)
        self._reader = None
        self.reset()
        if not is_iterable(base):
            base = shard_indices(
                base, num_processes=1, process_index=0, split_batches=False, even_batches=False
            )
        super()._wrap(base)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        is_finalizing = sys.is_finalizing  # a pass that is open at exit may end when module globals are gone
        self.begin()
        try:
            with fork_rng(enabled=self._is_resumed()):
                batches = self._read()
            yield from batches
            self._progress.finish_epoch()
        finally:
            if not is_finalizing():
                self.end()

    def __len__(self) -> int:
        return max(0, len(self.base_dataloader) - self.skip_batches)

    @property
    def counts_batches(self) -> bool:
        """Whether steps are counted in whole batches: the data set makes them, so their rows are unknown."""
        return batches_field(self.base_dataloader) is None

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        shard = index_shard(self.base_dataloader)
        return self.base_dataloader.batch_size if shard is None else shard.rows_per_rank

    @property
    def iteration(self) -> int:
        """The epoch that is being read or comes next."""
        return self._progress.epoch

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        self._progress.choose_epoch(epoch)

    def get_sampler(self) -> Any:
        """Return the sampler that yields single indices."""
        return get_sampler(self.base_dataloader)

    def set_sampler(self, sampler: Any) -> None:
        """Replace the sampler that yields single indices, from the next pass on."""
        set_sampler(self.base_dataloader, sampler)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next, and call ``set_epoch`` of the samplers and the data set that have one."""
        self._progress.choose_epoch(epoch)
        set_epoch(self.base_dataloader, epoch)

    def skipping(self, num_batches: int) -> Self:
        """Return a loader without this rank's first ``num_batches`` batches, which counts epochs together
        with this one.
        """
        return from_attributes(
            type(self),
            {
                **self.__dict__,
                "base_dataloader": clone_loader(self.base_dataloader),
                "skip_batches": self.skip_batches + num_batches,
                "_reader": None,
            },
        )

    @property
    def has_state_per_rank(self) -> bool:
        """Whether the ranks have states of their own: each reads a data set, or a part of one, that has a state.

        Then every rank has to save its own and load it again.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return epoch, position and the randomness of the order, as plain numbers and strings.

        The position is that of the last batch yielded, over all ranks together. Unless `has_state_per_rank`, it
        is the same on every rank, and can be loaded with any number of ranks. If the main process reads for all
        ranks, save its state: the others know the position but not the randomness.
        """
        return save_progress(
            self._progress, self.base_dataloader, self.data_ranks, is_per_rank=self.has_state_per_rank
        )

    def load_state_dict(self, state_dict: dict[str, Any], *, position: bool = True) -> None:
        """Resume where `state_dict` was called.

        Args:
            state_dict: The state.
            position: Restore the position too. If False the epoch begins anew, in the order that it had.

        Raises:
            CheckpointError: If the state does not fit the loader.
        """
        self.keeps_dataset_state = self.keeps_dataset_state or position
        load_progress(
            state_dict,
            self._progress,
            self.base_dataloader,
            self.data_ranks,
            is_per_rank=self.has_state_per_rank,
            position=position,
        )

    def state_after(self, num_batches: int) -> dict[str, Any]:
        """Return the state of the current epoch after ``num_batches`` of this rank's batches.

        For a position that is known from elsewhere; the order is the one that the loader would draw next.
        """
        position = self._position_after(num_batches)
        return {**self.state_dict(), "samples": position.samples, "batches": position.batches}

    def shares_progress_with(self, other: object) -> bool:
        """Whether a pass over ``other`` is one over this loader: it is the same, or one was made by `skipping`."""
        return isinstance(other, PreparedLoader) and other._progress is self._progress

    @property
    def is_mid_epoch(self) -> bool:
        """Whether batches of its epoch have been read and others have not, by a loop that goes on or was left."""
        return self._progress.current().position != START

    @property
    def total_batch_size(self) -> int:
        """Rows of a full step, over all ranks."""
        return self._step_size().samples

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set, over all ranks."""
        return len(stream_of(self.base_dataloader))

    def _read(self) -> Iterator[Any]:
        """Yield this rank's batches of one pass, keeping progress and gradient state up to date."""
        raise NotImplementedError

    def _is_resumed(self) -> bool:
        """Tell whether the next pass resumes an epoch that was opened before, whose order is known."""
        shard, resumption = index_shard(self.base_dataloader), self._progress.resumption
        is_known = resumption is not None and resumption.order_state is not None
        if shard is not None and shard.order_source.draws_from_default and not is_known:
            return False
        return self.skip_batches > 0 or self._progress.is_within_epoch

    def _begin_index_pass(
        self, shard: BatchSamplerShard, *, has_metadata: bool
    ) -> tuple[SamplerPass, Batches]:
        """Begin a pass over map-style data, with workers whose copies of the data set have the states saved."""
        progress, base = self._progress, self.base_dataloader
        resumption = progress.resumption or Resumption()
        start = self._position_after(self.skip_batches) if self.skip_batches else resumption.position
        ranks = self.data_ranks
        # A batch sampler that has the batches of its rank only, as in transformers, is set to one process by its user.
        is_shared = self._reads_by_plan and len(ranks.of_world) > 1 and shard.num_processes == ranks.num_ranks
        sampler_pass = shard.new_pass(start, order_state=resumption.order_state, is_shared=is_shared)
        progress.begin_pass(
            start, sampler_pass=sampler_pass, plan=sampler_pass.plan if self._reads_by_plan else None
        )
        reader = self._reader_for(base, has_metadata=has_metadata)
        if base.num_workers and self._keeps_dataset_state(base):
            states = resumption.worker_states
            if states is not None:
                restore_workers(reader, states)
            if states is not None or progress.worker_states is None:
                progress.worker_states = WorkerStates(
                    states or [None] * base.num_workers, are_persistent=base.persistent_workers
                )
        return sampler_pass, reader.read(sampler_pass)

    def _position_after(self, steps: int) -> Position:
        """Return where the epoch stands after ``steps`` steps."""
        size, shard = self._step_size(), index_shard(self.base_dataloader)
        if shard is not None:
            return shard.position_after(steps * size.batches // shard.batches_per_step)
        return Position(steps * size.samples, steps * size.batches)

    def _begin_stream_pass(self, *, is_whole: bool) -> Batches:
        """Begin a pass over a stream.

        Args:
            is_whole: Whether this rank reads the whole stream, for all ranks.
        """
        progress, generator = self._progress, self.synchronized_generator
        resumption = progress.resumption
        if generator is not None and resumption is not None and resumption.order_state is not None:
            generator.set_state(resumption.order_state)
        order_state = None if generator is None else generator.get_state()
        opener = StreamOpener(
            base=self.base_dataloader,
            step_size=self._step_size(),
            num_ranks=self.data_ranks.num_ranks,
            is_whole=is_whole,
            reader_for=self._reader_for,
        )
        if is_whole and self.skip_batches:  # read, and left out as steps: the first completes the last
            batches, start = opener.open(None, skip_steps=0)[0], self._position_after(self.skip_batches)
            warn_of_replay(f"{start.samples} samples")
        else:
            batches, start = opener.open(resumption, skip_steps=self.skip_batches)
        progress.begin_pass(start, order_state=order_state)
        progress.worker_states = self._stream_workers(resumption)
        return batches

    def _stream_workers(self, resumption: Resumption | None) -> WorkerStates | None:
        """Return the states that the workers of a stream begin a pass with, None if they are not kept."""
        base = self.base_dataloader
        if not base.num_workers or not self._keeps_dataset_state(base):
            return None
        if resumption is None or resumption.stream_workers is None:
            return WorkerStates([None] * base.num_workers, are_persistent=False)
        return WorkerStates(**resumption.stream_workers, are_persistent=False)

    def _not_pickled(self) -> dict[str, Any]:
        return {"_reader": None}

    def _reader_for(self, loader: DataLoader[Any], *, has_metadata: bool = True) -> Reader:
        """Return the reader for ``loader``: the last one while nothing has changed, since its workers may be
        persistent.
        """
        dataset = stream_of(loader) if self._keeps_dataset_state(loader) else None
        if self._reader is None or not self._reader.is_made_from(
            loader, has_metadata=has_metadata, stateful_dataset=dataset
        ):
            self._reader = Reader(loader, has_metadata=has_metadata, stateful_dataset=dataset)
        return self._reader

    def _keeps_dataset_state(self, loader: DataLoader[Any]) -> bool:
        """Tell whether the state of the data set is kept after each batch.

        A `StatefulDataLoader` keeps the states of a stream that its workers read.
        """
        keeps_itself = self.use_stateful_dataloader and is_iterable(loader) and loader.num_workers > 0
        return self.keeps_dataset_state and has_state(stream_of(loader)) and not keeps_itself

    def _placement(self) -> Placement | None:
        is_pinned = self.base_dataloader.pin_memory
        return placement(self.device, non_blocking=self._non_blocking, is_pinned=is_pinned)

    def _loader_state(self) -> Any:
        """Return the state of the `StatefulDataLoader` that reads, None if it lacks the position in the stream."""
        assert self._reader is not None, "asked for in a pass"
        stateful: Any = self._reader.loader
        state = stateful.state_dict()
        return state if has_position(state) else None

    def _announce_epoch(self, *, is_shared: bool, ends_alike: bool = True) -> None:
        """Agree with the other ranks on the epoch and its order, and pass the epoch on to samplers and data set.

        Args:
            is_shared: Whether other ranks read by the same order, other parts of it or the same.
            ends_alike: Whether all ranks have the same number of batches. If not, and the loop was left early,
                ranks with fewer may be in the next epoch already; the first rank, which has the most, is right.
        """
        if is_shared and not ends_alike:
            self._progress.choose_epoch(broadcast_object_list([self._progress.epoch])[0])
        set_epoch(self.base_dataloader, self._progress.epoch)
        agree_on_order(
            self.get_sampler(),
            self.synchronized_generator,
            rng_types=self.rng_types or (),
            is_shared=is_shared,
        )

    def _step_size(self) -> Position:
        shard = index_shard(self.base_dataloader)
        if shard is not None:
            return Position((shard.rows_per_rank or 1) * shard.num_processes, shard.batches_per_step)
        num_ranks = self.data_ranks.num_ranks
        return Position((self.base_dataloader.batch_size or 1) * num_ranks, num_ranks)
