"""The loader that reads on the main process for all ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

import torch
from torch.utils.data import DataLoader

from accel_data.dispatch.scatter import ScatterPlan
from accel_data.dispatch.send import DispatchedSteps, read_steps, receive_steps, send_steps
from accel_data.loaders.prepared import PreparedLoader, Steps
from accel_data.loaders.state import Pass, Resumption
from accel_data.loaders.torch_loader import build_loader
from accel_data.mesh import data_ranks, ranks_of_run
from accel_data.samplers.batch_shard import SamplerPass, rows_of_rank
from accel_data.samplers.order import fork_rng
from accel_data.step import GlobalStep, Position, ReadStates, ShardPlan
from accel_ops.transport import current_transport


class DataLoaderDispatcher(PreparedLoader):
    """Read on the main process only, and send every rank its part of each step.

    Args:
        dataset: As for `DataLoader`.
        split_batches: Split each batch into one piece for each rank, instead of sending every rank a
            separate batch.
        skip_batches: Omit that many of each rank's batches at the start of each epoch.
        use_stateful_dataloader: Build on torchdata's `StatefulDataLoader`.
        slice_fn: Slices a batch, called like `slice_tensors`.
        torch_device_mesh: Mesh that defines which ranks get the same batches.
        iteration: The first epoch.
        **kwargs: As for `DataLoader`.

    Raises:
        ConfigError: If a batch cannot be split evenly.
    """

    _reads_for_all: ClassVar[bool] = True
    split_batches: bool
    even_batches: bool
    slice_fn: Callable[..., Any] | None

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
        self._scatter_plan()  # raises for a batch size that cannot be split

    @property
    def counts_batches(self) -> bool:
        """False: the main process counts the rows that it sends."""
        return False

    @property
    def rows_of_full_batch(self) -> int | None:
        """Rows of this rank's batch in a full step; None if they vary or are unknown."""
        return self._scatter_plan().rows

    def _user_batch_size(self) -> int | None:
        """Batch size of the user's loader, None if it has none."""
        base, shard = self._source.loader, self._source.index_shard
        return base.batch_size if shard is None or not base._auto_collation else shard.batch_size

    def _scatter_plan(self) -> ScatterPlan:
        num_ranks, base, shard = self.data_ranks.num_ranks, self._source.loader, self._source.index_shard
        return ScatterPlan(
            num_ranks,
            rows_of_rank(self._user_batch_size(), num_ranks, split_batches=self.split_batches),
            self.split_batches,
            self.even_batches and num_ranks > 1,
            self.slice_fn,
            drop_last=base.drop_last if shard is None else shard.drop_last,
        )

    def _samples_per_batch(self) -> int:
        """Samples in a full batch of the given loader; indices, if the data set makes a batch from several."""
        shard = self._source.index_shard
        return (self._source.loader.batch_size if shard is None else shard.batch_size) or 1

    def _step_size(self) -> Position:
        num_batches = self._scatter_plan().batches_per_step
        return Position(self._samples_per_batch() * num_batches, num_batches)

    def __len__(self) -> int:
        scatter, shard = self._scatter_plan(), self._source.index_shard
        read = None if shard is None else shard.plan()
        plan = None if read is None else self._plan_of(read)
        if plan is not None:
            return max(0, plan.num_local_steps - self.skip_batches)
        full, rest = divmod(self._base_length(), scatter.batches_per_step)
        if rest and not scatter.drop_last:
            full += scatter.even or self.data_ranks.rank < rest
        return max(0, full - self.skip_batches)

    def _plan_of(self, read: ShardPlan) -> ShardPlan | None:
        if not self.base_dataloader._auto_collation:  # the rows of what the data set makes vary
            return None
        scatter, ranks = self._scatter_plan(), self.data_ranks
        return replace(
            read, rows=scatter.rows or 1, num_ranks=ranks.num_ranks, rank=ranks.rank, even=scatter.even
        )

    def _steps(
        self, current: Pass, resumption: Resumption, sampler_pass: SamplerPass | None
    ) -> tuple[Steps, Callable[[], int]]:
        ranks, is_resumed = self.data_ranks, self._is_resumed()
        # A script may have set one process in the state, to read everything on each rank.
        is_alone = len(ranks.of_world) == 1
        if not is_alone and current_transport().rank != 0:
            if not is_resumed:
                self._draw_as_main_process(sampler_pass)
            announced = receive_steps(ranks.rank, self.device)
        else:
            read = self._read_steps(resumption, sampler_pass, current.read_states, is_resumed=is_resumed)
            announced = send_steps(read, ranks.rank, is_alone=is_alone)
        rows = self._samples_per_batch()
        dispatched = DispatchedSteps(announced, current.start, rank=ranks.rank, rows_per_batch=rows)
        return iter(dispatched), lambda: dispatched.num_missed

    def _read_steps(
        self,
        resumption: Resumption,
        sampler_pass: SamplerPass | None,
        read_states: Callable[[], ReadStates],
        *,
        is_resumed: bool,
    ) -> Iterator[tuple[GlobalStep, ReadStates]]:
        """Yield the steps of all ranks, on the main process.

        Reading starts with the first request, inside `send_steps`, so that an error reaches the other ranks.
        """
        with fork_rng(enabled=is_resumed):
            batches: Iterator[tuple[Any, int | None]]
            if sampler_pass is None:
                stream = self._read_stream(resumption)
                batches = ((batch, fetched.num_samples if fetched else None) for batch, fetched in stream)
            else:
                steps = self._read_indices(sampler_pass, resumption)
                has_samples = self.base_dataloader._auto_collation  # else the data set makes batches
                batches = (
                    (batch, step.shape.num_samples if has_samples and step.shape else None)
                    for batch, step in steps
                )
        read = read_steps(batches, self._scatter_plan(), read_states)
        yield from read if sampler_pass is not None else islice(read, self.skip_batches, None)

    def _draw_as_main_process(self, sampler_pass: SamplerPass | None) -> None:
        """Draw the same random numbers as the main process at the start of a pass.

        Otherwise ranks with the same seed would differ in all later random numbers.
        """
        torch.empty((), dtype=torch.int64).random_(generator=self.base_dataloader.generator)
        if sampler_pass is not None:
            next(iter(sampler_pass), None)
