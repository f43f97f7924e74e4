"""The loader that reads the batches of its rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_data.loaders.prepared import PreparedLoader, Steps
from accel_data.loaders.reader import Batches
from accel_data.loaders.state import Pass, Resumption
from accel_data.loaders.torch_loader import build_loader, source_of
from accel_data.mesh import DataRanks, data_ranks, ranks_of_run
from accel_data.samplers.batch_shard import SamplerPass
from accel_data.step import Position, StepInfo, full_step
from accel_state.enums import RNGType
from accel_state.errors import StateError
from accel_state.user_warnings import warn_user


class DataLoaderShard(PreparedLoader):
    """Read this rank's batches, put them on the device, and detect the last one.

    Built directly from unsharded data, it reads all of that data: if that is the part of this rank,
    `gather_for_metrics` returns the rows of all ranks.

    Args:
        dataset: As for `DataLoader`.
        device: The device of the batches. None: they are not moved.
        rng_types: Generators to synchronize at the start of each epoch.
        synchronized_generator: The generator that the order is drawn from.
        skip_batches: Omit that many of this rank's batches at the start of each epoch.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        torch_device_mesh: Mesh that defines which ranks read the same data.
        iteration: The first epoch.
        **kwargs: As for `DataLoader`.
    """

    def __init__(
        self,
        dataset: Any,
        device: torch.device | None = None,
        rng_types: Sequence[str | RNGType] | None = None,
        synchronized_generator: torch.Generator | None = None,
        skip_batches: int = 0,
        use_stateful_dataloader: bool = False,
        _drop_last: bool = False,
        _non_blocking: bool = False,
        torch_device_mesh: Any = None,
        iteration: int = 0,
        **kwargs: Any,
    ) -> None:
        base = build_loader(dataset, use_stateful_dataloader, **kwargs)
        self._wrap(
            base,
            device=device,
            rng_types=rng_types,
            synchronized_generator=synchronized_generator,
            skip_batches=skip_batches,
            non_blocking=_non_blocking,
            iteration=iteration,
            ranks=_ranks_of(base) if torch_device_mesh is None else data_ranks(torch_device_mesh),
        )

    @property
    def even_batches(self) -> bool:
        """Whether the last step is completed so that all ranks get equally large batches. May be set between epochs."""
        source = self._source.shard
        return source is not None and source.even_batches

    @even_batches.setter
    def even_batches(self, even_batches: bool) -> None:
        source = self._source.shard
        if source is None:
            raise StateError(
                "`even_batches` cannot be set on this data loader: its data set is self-sharding. Prepare it with "
                "`dispatch_batches=True`."
            )
        source.even_batches = even_batches

    @property
    def can_set_even_batches(self) -> bool:
        """False for a self-sharding data set: its batches cannot be completed."""
        return self._source.shard is not None

    def _steps(
        self, current: Pass, resumption: Resumption, sampler_pass: SamplerPass | None
    ) -> tuple[Steps, Callable[[], int]]:
        if sampler_pass is None:
            ends_alike = self._ends_alike or self.data_ranks.num_ranks == 1
            steps = _stream_steps(self._read_stream(resumption), current, ends_alike=ends_alike)
            return steps, self._reader.num_missed
        steps = self._read_indices(sampler_pass, resumption)
        if self._non_blocking and self._source.loader.pin_memory:  # copied one batch ahead
            steps = ((batch, replace(step, states=current.read_states())) for batch, step in steps)
        return steps, lambda: sampler_pass.num_missed


def _stream_steps(batches: Batches, current: Pass, *, ends_alike: bool) -> Steps:
    """Describe the steps of a stream.

    Each is read ahead to detect whether the one before is the last, of all ranks if they ``ends_alike``.
    """
    end, step_size, upcoming = current.start, current.step_size, next(batches, None)
    while upcoming is not None:
        batch, fetched = upcoming
        # Read before the next batch is fetched: a checkpoint now must resume with that batch.
        states = current.read_states()
        following = next(batches, None)
        is_last = following is None
        end = Position(end.samples + step_size.samples, end.batches + step_size.batches)
        shape = None if fetched is None else fetched.shape
        if fetched is not None and fetched.num_samples is not None and step_size.batches == 1:
            shape = full_step(fetched.num_samples, 1)
        ends_some_rank = is_last if ends_alike else None
        # The data set may learn only now that the epoch has ended: after the last step, read its state at the save.
        yield batch, StepInfo(shape, end, is_last, ends_some_rank, is_last, None if is_last else states)
        upcoming = following


def _ranks_of(loader: DataLoader[Any]) -> DataRanks:
    """Return the ranks of the run if ``loader`` is sharded for as many, else one rank."""
    source, single = source_of(loader), DataRanks(1, 0, ())
    if source.shard is None and not source.is_stream:
        return single
    ranks = ranks_of_run()
    return ranks if source.shard is None or source.shard.num_processes == ranks.num_ranks else single


@contextmanager
def override_even_batches(loader: DataLoader[Any], even_batches: bool) -> Iterator[None]:
    """Read ``loader`` with another `even_batches` in the block; warn if the setting has no effect on it."""
    if not isinstance(loader, DataLoaderShard) or not loader.can_set_even_batches:
        warn_user(
            f"`even_batches={even_batches}` has no effect on a prepared {type(loader).__name__}: either the main "
            "process reads for all processes, or the data set is self-sharding. Leave it out.",
        )
        yield
        return
    before = loader.even_batches
    loader.even_batches = even_batches
    try:
        yield
    finally:
        loader.even_batches = before
