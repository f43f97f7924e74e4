"""What all prepared loaders have in common: epochs, a position, a state, and a device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
from torch.utils.data import BatchSampler, DataLoader

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.adapter import DataLoaderAdapter
from accel_data.loaders.agreement import agree_on_order
from accel_data.loaders.epochs import get_sampler, set_epoch, set_sampler
from accel_data.loaders.placement import Placement, placement
from accel_data.loaders.progress import Progress, Resumption
from accel_data.loaders.saving import load_progress, save_progress
from accel_data.loaders.sharding import fork, index_shard, is_iterable, shard_indices
from accel_data.loaders.state_mixin import DataLoaderStateMixin
from accel_data.loaders.streams import has_state, open_stream, stream_of
from accel_data.loaders.tagging import Notes, tagging
from accel_data.loaders.unmoved import generators_unmoved
from accel_data.loaders.worker_states import WorkerStates, iterate_with
from accel_data.mesh import DataRanks, all_different
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_data.samplers.run import Position, SamplerRun
from accel_data.stateful import knows_place
from accel_ops.collectives.objects import broadcast_object_list
from accel_state.enums import RNGType

#: Attributes that a loader of torch changes by itself.
_NOT_SETTINGS = frozenset({"_iterator", "_IterableDataset_len_called"})


class PreparedLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """Base of the loaders that `prepare_data_loader` returns.

    Attributes:
        data_ranks: Which ranks read the same data.
        device: Where the batches go, None if they stay where they are.
        rng_types: Generators that are synchronised at the start of each epoch.
        skip_batches: Batches that are left out at the start of each epoch.
        synchronized_generator: The generator that the order is drawn from.
    """

    data_ranks: DataRanks
    device: torch.device | None
    rng_types: Sequence[str | RNGType] | None
    skip_batches: int
    synchronized_generator: torch.Generator | None
    _non_blocking: bool
    _progress: Progress
    _notes: Notes
    #: The loader that reads, with what it was made from.
    _reader_of: dict[str, tuple[dict[str, Any], DataLoader[Any]]]
    #: What the workers of the pass that is opened next begin with.
    _restored: list[Any] | None

    #: Whether the sampler's plan says what this rank is handed at each step.
    _reads_by_plan: ClassVar[bool] = True

    def _set_up(
        self,
        *,
        device: torch.device | None = None,
        rng_types: Sequence[str | RNGType] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        non_blocking: bool = False,
        iteration: int = 0,
        ranks: DataRanks | None = None,
    ) -> None:
        base = self.base_dataloader
        if not is_iterable(base):
            base = shard_indices(
                base, num_processes=1, process_index=0, split_batches=False, even_batches=False
            )
        self.__dict__.update(
            base_dataloader=base,
            data_ranks=ranks or all_different(1, 0),
            device=device,
            rng_types=rng_types,
            synchronized_generator=synchronized_generator,
            skip_batches=skip_batches,
            _non_blocking=non_blocking,
            _progress=Progress(epoch=iteration),
            _notes=Notes(),
            _reader_of={},
            _restored=None,
        )
        self.reset()

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        self.begin()
        try:
            with generators_unmoved(self._goes_on()):
                batches = self._read()
            yield from batches
            self._progress.finish_epoch()
        finally:
            self.end()

    def __len__(self) -> int:
        return max(0, len(self.base_dataloader) - self.skip_batches)

    @property
    def counts_batches(self) -> bool:
        """Whether steps are counted in whole batches, since the data set makes them and their rows are its
        own affair.
        """
        return not self.base_dataloader._auto_collation and not isinstance(
            self.base_dataloader.sampler, BatchSampler
        )

    @property
    def iteration(self) -> int:
        """The epoch that is being read, or comes next."""
        return self._progress.epoch

    def get_sampler(self) -> Any:
        """Return the sampler that yields single indices."""
        return get_sampler(self.base_dataloader)

    def set_sampler(self, sampler: Any) -> None:
        """Replace the sampler that yields single indices, from the next pass on."""
        set_sampler(self.base_dataloader, sampler)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next, and tell samplers and data set that have a ``set_epoch``."""
        self._progress.choose_epoch(epoch)
        set_epoch(self.base_dataloader, epoch)

    def skipping(self, num_batches: int) -> Self:
        """Return a loader without this rank's first ``num_batches`` batches, which counts epochs together
        with this one.
        """
        other: Self = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.__dict__.update(base_dataloader=fork(self.base_dataloader))
        other.__dict__.update(skip_batches=self.skip_batches + num_batches, _notes=Notes(), _reader_of={})
        return other

    @property
    def has_state_per_rank(self) -> bool:
        """Whether the ranks have states of their own: each reads a data set, or a part of one, that has a state.

        Then every rank has to save its own and load it again.
        """
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return epoch, position and the randomness of the order, as plain numbers and strings.

        The position is that of the last batch handed out, over all ranks together; unless
        `has_state_per_rank`, it is the same on every rank, and is good for any number of ranks. Where one rank
        reads for all, its state is the one to keep: the others know the position, but not the randomness.
        """
        return save_progress(
            self._progress, self.base_dataloader, self.data_ranks, is_per_rank=self.has_state_per_rank
        )

    def load_state_dict(self, state_dict: dict[str, Any], *, position: bool = True) -> None:
        """Go on where `state_dict` was called.

        Args:
            state_dict: The state.
            position: Go to the position as well. If False the epoch begins anew, in the order that it had.

        Raises:
            CheckpointError: If the state does not fit the loader.
        """
        load_progress(
            state_dict,
            self._progress,
            self.base_dataloader,
            self.data_ranks,
            is_per_rank=self.has_state_per_rank,
            position=position,
        )

    def state_after(self, num_batches: int) -> dict[str, Any]:
        """Return the state of the epoch at hand after ``num_batches`` of this rank's batches.

        It is for a position that comes from elsewhere; the order is the one that the loader would draw next.
        """
        position = self._position_after(num_batches)
        return {**self.state_dict(), "samples": position.samples, "batches": position.batches}

    def shares_progress_with(self, other: object) -> bool:
        """Whether a pass over ``other`` is one over this loader: it is the same, or one came by `skipping`."""
        return isinstance(other, PreparedLoader) and other._progress is self._progress

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

    def _goes_on(self) -> bool:
        """Tell whether the next pass goes on with an epoch that was opened before, whose order is known."""
        shard, resumption = index_shard(self.base_dataloader), self._progress.resumption
        is_known = resumption is not None and resumption.order_state is not None
        if shard is not None and shard.draws_from_default and not is_known:
            return False
        return self.skip_batches > 0 or self._progress.is_within_epoch

    def _begin_index_pass(self, shard: BatchSamplerShard) -> SamplerRun:
        """Announce to the sampler where the pass begins."""
        resumption = self._progress.resumption or Resumption()
        start = self._position_after(self.skip_batches) if self.skip_batches else resumption.position
        is_shared = self._reads_by_plan and len(self.data_ranks.of_world) > 1
        run = shard.begin_run(start, order_state=resumption.order_state, is_shared=is_shared)
        self._progress.begin_pass(start, run, run.plan if self._reads_by_plan else None)
        self._restored = resumption.worker_states
        return run

    def _open(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Return the batches of map-style data, which leave their notes, with workers that go on where others
        left off.
        """
        reader, states = self._reader(loader), self._restored
        self._restored = None
        if not loader.num_workers or not has_state(loader.dataset):
            return iter(reader)
        if states is not None or self._progress.worker_states is None:
            begin_with = states or [None] * loader.num_workers
            self._progress.worker_states = WorkerStates(begin_with, live_on=loader.persistent_workers)
        return iter(reader) if states is None else iterate_with(reader, states)

    def _position_after(self, steps: int) -> Position:
        """Return where the epoch stands after ``steps`` steps."""
        size, shard = self._step_size(), index_shard(self.base_dataloader)
        if shard is not None:
            return shard.position_after(steps * size.batches // shard.batches_per_step)
        return Position(steps * size.samples, steps * size.batches)

    def _begin_stream_pass(self, *, is_whole: bool) -> Iterator[Any]:
        """Return the batches of the stream from where the pass begins."""
        resumption, generator = self._progress.resumption, self.synchronized_generator
        if generator is not None and resumption is not None and resumption.order_state is not None:
            generator.set_state(resumption.order_state)
        order_state = None if generator is None else generator.get_state()
        batches, start = open_stream(
            self.base_dataloader,
            skip_steps=self.skip_batches,
            resumption=resumption,
            step_size=self._step_size(),
            num_ranks=self.data_ranks.num_ranks,
            is_whole=is_whole,
            reader=self._reader,
        )
        self._progress.begin_pass(start, SamplerRun(start, order_state=order_state, has_drawn=True))
        self._progress.worker_states = self._stream_workers(resumption)
        return batches

    def _stream_workers(self, resumption: Resumption | None) -> WorkerStates | None:
        """Return what the workers of a stream begin a pass with, None where their states are not noted."""
        base = self.base_dataloader
        if not base.num_workers or not self._is_noted(base):
            return None
        if resumption is None or resumption.stream_workers is None:
            return WorkerStates([None] * base.num_workers, live_on=False)
        return WorkerStates(**resumption.stream_workers, live_on=False)

    def _not_carried(self) -> dict[str, Any]:
        return {"_notes": Notes(), "_reader_of": {}}

    def _reader(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a loader that reads like ``loader`` and keeps notes, the same one while nothing is changed:
        it may have workers that live on."""
        made = self._reader_of.get("reader")
        wanted = _settings(loader)
        if (
            made is None
            or made[0].keys() != wanted.keys()
            or any(made[0][key] is not wanted[key] for key in wanted)
        ):
            dataset = stream_of(loader) if self._is_noted(loader) else None
            made = wanted, tagging(loader, self._notes, stateful_dataset=dataset)
            self._reader_of["reader"] = made
        return made[1]

    def _is_noted(self, loader: DataLoader[Any]) -> bool:
        """Tell whether the state of the data set is noted after each batch.

        A `StatefulDataLoader` keeps the states of a stream in its workers by itself.
        """
        keeps_itself = self.use_stateful_dataloader and is_iterable(loader) and loader.num_workers > 0
        return has_state(stream_of(loader)) and not keeps_itself

    def _placement(self) -> Placement | None:
        is_pinned = self.base_dataloader.pin_memory
        return placement(self.device, non_blocking=self._non_blocking, is_pinned=is_pinned)

    def _loader_state(self) -> Any:
        """Return the state of the `StatefulDataLoader` that reads, None if it does not hold the place of the
        stream.
        """
        reader: Any = self._reader_of["reader"][1]
        state = reader.state_dict()
        return state if knows_place(state) else None

    def _announce_epoch(self, *, is_shared: bool, ends_alike: bool = True) -> None:
        """Agree with the other ranks on the epoch and its order, and tell them to what wants to know.

        Args:
            is_shared: Whether other ranks read by the same order, other parts of it or the same.
            ends_alike: Whether all ranks have as many batches. If not, and the loop was left early, those with fewer
                may have gone on to the next epoch already, while the first rank, which has the most, has not.
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


def _settings(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return what decides how ``loader`` reads, also what may be set between epochs."""
    settings = {name: value for name, value in loader.__dict__.items() if name not in _NOT_SETTINGS}
    if isinstance(loader.dataset, IterableDatasetShard):
        settings["even_batches"] = loader.dataset.even_batches
    return settings
