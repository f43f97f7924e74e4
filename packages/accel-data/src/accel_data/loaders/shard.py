"""The loader of a rank that reads its own batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader

from accel_data.iterable_shard import IterableDatasetShard
from accel_data.loaders.adapter import build_loader
from accel_data.loaders.pass_ import Pass, stream_steps, with_states
from accel_data.loaders.prepared import PreparedLoader
from accel_data.loaders.streams import has_state
from accel_data.loaders.torch_loader import index_shard, is_iterable
from accel_data.mesh import DataRanks, data_ranks, ranks_of_run
from accel_data.samplers.batch_shard import BatchSamplerShard
from accel_state.enums import RNGType
from accel_state.errors import StateError
from accel_state.user_warnings import warn_user


class DataLoaderShard(PreparedLoader):
    """Read this rank's batches, put them on the device, and report which is the last.

    Args:
        dataset: As for `DataLoader`.
        device: Where to put the batches. None: they stay where they are.
        rng_types: Generators to synchronize at the start of each epoch.
        synchronized_generator: The generator that the order is drawn from.
        skip_batches: Leave out that many of this rank's batches at the start of each epoch.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        torch_device_mesh: Mesh that says which ranks read the same.
        iteration: The epoch to begin with.
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
        source = _sharded_source(self.base_dataloader)
        return source is not None and source.even_batches

    @even_batches.setter
    def even_batches(self, even_batches: bool) -> None:
        source = _sharded_source(self.base_dataloader)
        if source is None:
            raise StateError(
                "`even_batches` cannot be set on this data loader: its data set shards itself. Prepare it with "
                "`dispatch_batches=True`."
            )
        source.even_batches = even_batches

    @property
    def can_set_even_batches(self) -> bool:
        """False for a data set that shards itself: its batches cannot be completed."""
        return _sharded_source(self.base_dataloader) is not None

    @property
    def has_state_per_rank(self) -> bool:
        """Whether the ranks have states of their own: each reads a data set, or a part of one, that has a state."""
        base = self.base_dataloader
        if self.data_ranks.num_ranks == 1:
            return False
        if is_iterable(base):
            return not isinstance(base.dataset, IterableDatasetShard)
        return has_state(base.dataset)

    def _open(self) -> Pass:
        base, ranks = self.base_dataloader, self.data_ranks
        source, shard = _sharded_source(base), index_shard(base)
        ends_alike = source is not None and (source.even_batches or source.drop_last)
        is_shared = len(ranks.of_world) > 1
        self._announce_epoch(is_shared=is_shared, ends_alike=ends_alike)
        resumption = self._resumption()
        start = resumption.position
        if shard is None:
            order = self._stream_order(resumption)
            steps = stream_steps(
                self._read_stream(resumption, reads_all=False),
                start=start,
                step_size=self._step_size(),
                ends_alike=ends_alike or ranks.num_ranks == 1,
                read_states=self._read_states(),
            )
            missed = self._reader.num_missed
            return self._pass(start, steps, lambda: order, missed, is_pinned=base.pin_memory)
        # A batch sampler that has the batches of its rank only, as in transformers, is set to one process by its user.
        is_shared = is_shared and shard.num_processes == ranks.num_ranks
        sampler_pass = shard.new_pass(start, order_state=resumption.order, is_shared=is_shared)
        steps = self._read_indices(sampler_pass, resumption)
        if sampler_pass.plan is not None:
            self._expect(sampler_pass.plan)
        if self._non_blocking and base.pin_memory:  # copied one batch ahead
            steps = with_states(steps, self._read_states())
        return self._pass(
            start,
            steps,
            lambda: sampler_pass.order.state,
            lambda: sampler_pass.num_missed,
            is_pinned=base.pin_memory,
        )


def _sharded_source(loader: DataLoader[Any]) -> BatchSamplerShard | IterableDatasetShard | None:
    """Return what gives ``loader`` this rank's part, None for a data set that shards itself."""
    dataset: Any = loader.dataset
    return dataset if isinstance(dataset, IterableDatasetShard) else index_shard(loader)


def _ranks_of(loader: DataLoader[Any]) -> DataRanks | None:
    """Return the ranks of the run if ``loader`` is sharded for as many, None if that is not known."""
    source = _sharded_source(loader)
    if source is None and not is_iterable(loader):
        return None
    ranks = ranks_of_run()
    return ranks if source is None or source.num_processes == ranks.num_ranks else None


@contextmanager
def override_even_batches(loader: DataLoader[Any], even_batches: bool) -> Iterator[None]:
    """Read ``loader`` with another `even_batches` in the block; warn if the setting has no effect on it."""
    if not isinstance(loader, DataLoaderShard) or not loader.can_set_even_batches:
        warn_user(
            f"`even_batches={even_batches}` has no effect on a prepared {type(loader).__name__}: either the main "
            "process reads for all processes, or the data set shards itself.",
        )
        yield
        return
    before = loader.even_batches
    loader.even_batches = even_batches
    try:
        yield
    finally:
        loader.even_batches = before
