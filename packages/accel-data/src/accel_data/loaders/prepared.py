"""The base of all prepared loaders: epochs, position, state, and device."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import torch
from torch.utils.data import DataLoader

from accel_data.loaders.placement import placed
from accel_data.loaders.reader import Batches, Reader, warn_of_replay
from accel_data.loaders.state import Pass, Progress, Resumption, Source, load_progress, save_progress
from accel_data.loaders.torch_loader import (
    DataLoaderAdapter,
    DataLoaderStateMixin,
    batches_field,
    from_attributes,
    is_iterable,
    shard_indices,
    source_of,
)
from accel_data.mesh import DataRanks, all_different
from accel_data.samplers.batch_shard import SamplerPass
from accel_data.samplers.order import EpochOrder, fork_rng
from accel_data.samplers.seedable import SeedableRandomSampler
from accel_data.step import NO_STATES, START, Position, ShardPlan, StepInfo
from accel_ops.objects import broadcast_object_list
from accel_ops.random import synchronize_rng_states
from accel_state.enums import RNGType
from accel_state.gradient_state import current_gradient
from accel_state.user_warnings import warn_user

Steps = Iterator[tuple[Any, StepInfo]]


class PreparedLoader(DataLoaderAdapter, DataLoaderStateMixin):
    """Base of the loaders that `prepare_data_loader` returns.

    Attributes:
        data_ranks: Which ranks read the same data.
        device: The device of the batches, None to leave them on theirs.
        rng_types: Generators that are synchronized at the start of each epoch.
        skip_batches: Batches that are omitted at the start of each epoch.
        synchronized_generator: The generator that the order is drawn from.
        keeps_dataset_state: Whether a data set with `state_dict` has its state copied after each batch.
    """

    data_ranks: DataRanks
    device: torch.device | None
    rng_types: Sequence[str | RNGType] | None
    skip_batches: int
    synchronized_generator: torch.Generator | None
    keeps_dataset_state: bool
    #: Whether one rank reads for all.
    _reads_for_all: ClassVar[bool] = False
    _non_blocking: bool
    _progress: Progress
    _source: Source

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
        shares_generator: bool = False,
        keeps_dataset_state: bool = True,
    ) -> None:
        self.data_ranks = ranks or all_different(1, 0)
        self.device = device
        self.rng_types = rng_types
        self.synchronized_generator = synchronized_generator
        self.skip_batches = skip_batches
        self.keeps_dataset_state = keeps_dataset_state
        self._non_blocking = non_blocking
        self._progress = Progress(epoch=iteration)
        self.reset()
        if not is_iterable(base):
            base = shard_indices(base, all_different(1, 0), split_batches=False, even_batches=False)
        super()._wrap(base)
        if shares_generator:
            self.synchronized_generator = self._source.generator

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        is_finalizing = sys.is_finalizing  # a pass open at exit may end when module globals have been deleted
        reading, note_batch = self.begin(), self.gradient_state._note_batch
        current = None
        try:
            with fork_rng(enabled=self._is_resumed()):
                current, steps, num_missed = self._open()
            self._progress.start(current)
            num_read = 0
            for batch, step in steps:
                num_read += 1
                current.step = step
                self.enter(step)
                note_batch(reading)
                yield batch
            if num_missed():
                warn_of_fewer_batches(self.data_ranks.rank, num_read, num_read + num_missed())
            self._progress.finish_epoch()
        finally:
            if not is_finalizing():
                self._progress.end(current)
                self.end()

    def __len__(self) -> int:
        return max(0, self._base_length() - self.skip_batches)

    def enter(self, step: StepInfo) -> None:
        """Set the attributes that describe the step whose batch is yielded next."""
        # Only if changed: setting an attribute of an adapter also looks it up in the inner loader, which takes 1 µs.
        if step.shape is not self.step_shape:
            self.step_shape = step.shape
        if step.ends_some_rank is not self.ends_some_rank:
            self.ends_some_rank = step.ends_some_rank
        if step.is_last:
            self.end_of_dataloader = True
            if self.remainder < 0 and step.shape is not None:
                self.remainder = step.shape.remainder(self.rows_of_full_batch)

    @property
    def follows_random_state(self) -> bool:
        """Whether the order of an epoch is drawn from torch's default generator: the sampler has no generator."""
        return self._source.lacks_generator

    @property
    def counts_batches(self) -> bool:
        """Whether steps are counted in batches: the data set makes them, so their rows are unknown."""
        return batches_field(self._source.loader) is None

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        shard = self._source.index_shard
        return self._source.loader.batch_size if shard is None else shard.rows_per_rank

    @property
    def iteration(self) -> int:
        """The current epoch, or between epochs the next one."""
        return self._progress.epoch

    @iteration.setter
    def iteration(self, epoch: int) -> None:
        self._progress.choose_epoch(epoch)

    def keep_dataset_state(self) -> None:
        """Copy the state of a data set with `state_dict` after each batch, from the next pass on."""
        self.keeps_dataset_state = True

    def get_sampler(self) -> Any:
        """Return the sampler that yields single indices."""
        return self._source.sampler

    def set_sampler(self, sampler: Any) -> None:
        """Replace the sampler that yields single indices, from the next pass on."""
        self._source.set_sampler(sampler)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that is read next, and call ``set_epoch`` of the samplers and the data set that have one."""
        self._progress.choose_epoch(epoch)
        self._source.set_epoch(epoch)

    def skipping(self, num_batches: int) -> Self:
        """Return a loader without this rank's first ``num_batches`` batches, which counts epochs with this one."""
        attributes = {"_progress": self._progress, "skip_batches": self.skip_batches + num_batches}
        return from_attributes(type(self), self._copied_attributes() | attributes)

    @property
    def has_state_per_rank(self) -> bool:
        """Whether the ranks have different states: each reads a data set, or a part of one, that has a state.

        Then every rank must save and load its state.
        """
        source = self._source
        if self._reads_for_all or self.data_ranks.num_ranks == 1:
            return False
        return source.stream_shard is None if source.is_stream else source.has_state

    def state_dict(self) -> dict[str, Any]:
        """Return epoch, position and the randomness of the order, as plain numbers and strings.

        The position is after the last batch yielded, over all ranks together. Unless `has_state_per_rank`, it
        is the same on every rank, and can be loaded with any number of ranks. If the main process reads for all
        ranks, save its state: the other ranks have the position but not the randomness.
        """
        return save_progress(
            self._progress,
            self._source,
            self.data_ranks,
            is_per_rank=self.has_state_per_rank,
            keeps_dataset_state=self.keeps_dataset_state,
        )

    def load_state_dict(self, state_dict: dict[str, Any], *, position: bool = True) -> None:
        """Resume where `state_dict` was called.

        Args:
            state_dict: The state.
            position: Also restore the position. If False the epoch restarts, in the order that it had.

        Raises:
            CheckpointError: If the state does not fit the loader.
        """
        if position:
            self.keep_dataset_state()
        load_progress(
            state_dict,
            self._progress,
            self._source,
            self.data_ranks,
            is_per_rank=self.has_state_per_rank,
            position=position,
        )

    def state_after(self, num_batches: int) -> dict[str, Any]:
        """Return the state of the current epoch after ``num_batches`` of this rank's batches.

        For a position from another source; the order is the next one that the loader would draw.
        """
        position = self._position_after(num_batches)
        return {**self.state_dict(), "samples": position.samples, "batches": position.batches}

    @property
    def is_under_way(self) -> bool:
        """Whether a pass over it, or over a loader made by `skipping`, has started and neither ended nor been left.

        Also true if a state was loaded that the next pass resumes.
        """
        return self._progress.running is not None or self._progress.resumption.position != START

    @property
    def num_batches_read(self) -> int:
        """This rank's batches up to the position if a pass is under way, else 0."""
        running = self._progress.running
        size = self._step_size() if running is None else running.step_size
        return self._progress.position.samples // size.samples if self.is_under_way else 0

    @property
    def is_mid_epoch(self) -> bool:
        """Whether batches of its epoch have been read and others have not, by a loop that is running or was left."""
        return self._progress.position != START

    @property
    def total_batch_size(self) -> int:
        """Rows of a full step, over all ranks."""
        return self._step_size().samples

    @property
    def total_dataset_length(self) -> int:
        """Samples of the data set, over all ranks."""
        return len(self._source.dataset)

    def _open(self) -> tuple[Pass, Steps, Callable[[], int]]:
        """Start a pass over this rank's batches. Every rank must call it if the order is shared.

        Returns:
            The pass, its batches, each with its step, and a function that returns, after the last batch, how many more
            other ranks have.
        """
        self._announce_epoch()
        source, ranks, resumption, sampler_pass = self._source, self.data_ranks, self._resumption(), None
        start, shard = resumption.position, source.index_shard
        if shard is None:
            order = EpochOrder(self.synchronized_generator, state=resumption.order)
            order.start()
        else:
            # transformers sets a batch sampler with this rank's batches, sharded for one process: not shared then.
            is_shared = self._is_shared and shard.num_processes == ranks.num_ranks
            order = EpochOrder(
                source.generator, shard.batch_sampler, state=resumption.order, is_shared=is_shared
            )
            sampler_pass = shard.new_pass(start, order)
        read = None if sampler_pass is None else sampler_pass.plan
        plan = None if read is None else self._plan_of(read)
        if plan is not None:
            self.remainder = plan.remainder
            self.will_pad = plan.even and plan.remainder > 0
        kept = source.dataset if self.keeps_dataset_state and source.has_state else None
        has_states = kept is not None or source.is_stream
        states = partial(self._reader.states, kept) if has_states else lambda: NO_STATES
        current = Pass(start, self._step_size(), ranks.num_ranks, order, states)
        steps, num_missed = self._steps(current, resumption, sampler_pass)
        device = None if self.device is None else torch.device(self.device)
        # Without an accelerator, batches are on the CPU already.
        if device is not None and (device.type != "cpu" or torch.accelerator.is_available()):
            # Received batches are not in pinned memory. Without workers, reading a batch ahead would draw its random
            # numbers before a checkpoint of the batch before saves the generators: the resumed run would differ.
            loader = source.loader
            is_pinned = loader.pin_memory and loader.num_workers > 0 and not self._reads_for_all
            steps = placed(steps, device, non_blocking=self._non_blocking, is_pinned=is_pinned)
        return current, steps, num_missed

    def _steps(
        self, current: Pass, resumption: Resumption, sampler_pass: SamplerPass | None
    ) -> tuple[Steps, Callable[[], int]]:
        """Start to read for `_open`, without moving the batches. A stream has no ``sampler_pass``."""
        raise NotImplementedError

    def _plan_of(self, read: ShardPlan) -> ShardPlan | None:
        """Return the plan of an epoch for the loop, if known, given the plan of reading."""
        return read

    def _is_resumed(self) -> bool:
        """Whether the next pass resumes an epoch that was opened before, whose order is known."""
        resumption = self._progress.resumption
        if not self.skip_batches and resumption.position == START:
            return False
        return resumption.order is not None or not self._source.lacks_generator

    def _resumption(self) -> Resumption:
        """Return the start of the next pass."""
        resumption = self._progress.resumption
        if self.skip_batches:
            return Resumption(self._position_after(self.skip_batches), resumption.order)
        return resumption

    def _read_indices(self, sampler_pass: SamplerPass, resumption: Resumption) -> Steps:
        """Start to read map-style data."""
        uses_state = self.use_stateful_dataloader and not resumption.is_complete
        state = resumption.states.loader if uses_state else None
        return _sampled_steps(self._reader.read_indices(sampler_pass, state=state), sampler_pass.steps)

    def _read_stream(self, resumption: Resumption) -> Batches:
        """Start to read a stream."""
        reader, rows = self._reader, self._step_size().samples
        if self._reads_for_all:
            rows = self._source.loader.batch_size or 1
        if not self.skip_batches:
            return reader.resume_stream(resumption, rows=rows)
        if not self._reads_for_all:
            return reader.replay_stream(resumption.position, num_ranks=self.data_ranks.num_ranks, rows=rows)
        # Skipped as steps, which reads them: the first one completes the last.
        warn_of_replay(f"{resumption.position.samples} samples")
        return reader.read_stream()

    def _position_after(self, steps: int) -> Position:
        """Return the position in the epoch after ``steps`` steps."""
        size, shard = self._step_size(), self._source.index_shard
        if shard is not None:
            return shard.position_after(steps * size.batches // shard.batches_per_step)
        return Position(steps * size.samples, steps * size.batches)

    def _fields_of(self, base: DataLoader[Any]) -> dict[str, Any]:
        return {**super()._fields_of(base), "_source": source_of(base)}

    def _copied_attributes(self) -> dict[str, Any]:
        attributes = {**super()._copied_attributes(), "_progress": self._progress.detached()}
        attributes.pop("_reader", None)
        return attributes

    @cached_property
    def _reader(self) -> Reader:
        ranks = self.data_ranks
        return Reader(self._source, num_ranks=ranks.num_ranks, rank=ranks.rank, reads_all=self._reads_for_all)

    @property
    def _is_shared(self) -> bool:
        """Whether other ranks read by the same order."""
        return not self._reads_for_all and len(self.data_ranks.of_world) > 1

    @property
    def _ends_alike(self) -> bool:
        """Whether all ranks have the same number of batches."""
        shard = self._source.shard
        return shard is not None and (shard.even_batches or shard.drop_last)

    def _announce_epoch(self) -> None:
        """Agree with the other ranks on the epoch and its randomness, and set the epoch of samplers and data set.

        Every rank must call this if the order is shared; it blocks until all do.
        """
        if self._is_shared and not self._ends_alike:
            # If the loop was left early, ranks with fewer batches may be in the next epoch; the first has the most.
            self._progress.choose_epoch(broadcast_object_list([self._progress.epoch])[0])
        self._reader.set_epoch(self._progress.epoch)
        rng_types = [kind for kind in self.rng_types or () if RNGType(kind) != RNGType.GENERATOR]
        if rng_types:
            synchronize_rng_states(rng_types)
        if not self._is_shared:
            return
        sampler, generator = self.get_sampler(), self.synchronized_generator
        if isinstance(sampler, SeedableRandomSampler):
            sampler.share_seed()
        elif generator is not None:
            synchronize_rng_states([RNGType.GENERATOR], generator)

    def _step_size(self) -> Position:
        shard = self._source.index_shard
        if shard is not None:
            return Position((shard.rows_per_rank or 1) * shard.num_processes, shard.batches_per_step)
        num_ranks = self.data_ranks.num_ranks
        return Position((self._source.loader.batch_size or 1) * num_ranks, num_ranks)


def _sampled_steps(batches: Iterator[Any], steps: deque[StepInfo]) -> Steps:
    """Yield each batch of map-style data with its step, which is known when the batch has been sampled."""
    step = None
    for batch in batches:
        if steps:  # empty if the class of the loader yields more batches than it reads
            step = steps.popleft()
        assert step is not None, "a batch was sampled"
        yield batch, step


def warn_of_fewer_batches(rank: int, num_read: int, num_elsewhere: int) -> None:
    """Warn a training loop whose rank has read all its batches, if other ranks have more and would wait for it."""
    if torch.is_grad_enabled() and not current_gradient().joins_uneven_inputs:
        warn_user(
            f"Rank {rank} has read its {num_read} batches, and other ranks have {num_elsewhere}: the backward pass "
            "of the next one waits for this rank until it times out. Train within `join_uneven_inputs`, or prepare "
            "the loader with `even_batches=True`.",
            main_process_only=False,
        )
