"""One rank's samples of a stream."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any, Self

from torch.utils.data import IterableDataset

from accel_data.delegation import Delegating
from accel_data.samplers.batch_shard import rows_of_rank
from accel_data.step import StepShape, full_step, shape_of_step, split_step


class IterableDatasetShard(Delegating, IterableDataset[Any]):
    """Yield the samples of one rank, so that the batches of all ranks together keep the order of the stream.

    On two processes, with a batch size of 4 and the samples ``0`` to ``7``, process 0 yields ``0, 1, 2, 3``
    and process 1 ``4, 5, 6, 7``; with ``split_batches`` process 0 yields ``0, 1, 4, 5`` and process 1 ``2, 3,
    6, 7``. Every rank reads the full stream. Attributes that the shard lacks are read from the stream and set on
    it: in a worker the shard is the data set, whose attributes a `worker_init_fn` may set.

    Args:
        dataset: The stream. With several workers, the stream must divide its samples among them.
        batch_size: Rows of each rank's batch, or of all ranks together with ``split_batches``.
        drop_last: Omit the last samples if they do not fill a batch on every rank.
        num_processes: Ranks that share the stream.
        process_index: The rank of this shard.
        split_batches: See ``batch_size``.
        even_batches: Complete the last step with samples from the start.

    Raises:
        ConfigError: If ``split_batches`` and the batch size is not a multiple of the number of processes.
    """

    _wrapped_in = "dataset"
    dataset: Any

    def __init__(
        self,
        dataset: IterableDataset[Any],
        batch_size: int = 1,
        drop_last: bool = False,
        num_processes: int = 1,
        process_index: int = 0,
        split_batches: bool = False,
        *,
        even_batches: bool = True,
    ) -> None:
        rows_of_rank(batch_size, num_processes, split_batches=split_batches)
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.num_processes = num_processes
        self.process_index = process_index
        self.split_batches = split_batches
        self.even_batches = even_batches
        self.epoch = 0
        self._start = 0
        self._is_marking = False
        self.dataset = dataset  # from now on other attributes are set on the stream

    def __setattr__(self, name: str, value: Any) -> None:
        is_local = "dataset" not in self.__dict__ or name in self.__dict__ or not hasattr(self.dataset, name)
        object.__setattr__(self if is_local else self.dataset, name, value)

    @property
    def rows_per_rank(self) -> int:
        """Rows of one rank in a full step."""
        return self.batch_size // self.num_processes if self.split_batches else self.batch_size

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the stream, if it has a ``set_epoch``."""
        self.epoch = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def starting_at(self, samples: int) -> Self:
        """Return a shard of the stream without its first ``samples`` samples."""
        shard = copy.copy(self)
        shard._start = samples
        return shard

    def marking(self) -> Self:
        """Return a shard that yields `Marked` samples, which carry the shape of their step."""
        shard = copy.copy(self)
        shard._is_marking = True
        return shard

    def __len__(self) -> int:
        rows, total = self.rows_per_rank, len(self.dataset)
        full, rest = divmod(total, rows * self.num_processes)
        if self.drop_last:
            return full * rows
        if self.even_batches:
            return (full + bool(rest)) * rows
        last = shape_of_step(rest, rows=rows, num_ranks=self.num_processes, even=False)
        return full * rows + last.rows[self.process_index]

    def __iter__(self) -> Iterator[Any]:
        for piece, shape in self._steps():
            if self._is_marking:
                yield from [Marked(sample, shape) for sample in piece] or (Marked(None, None),)
            else:
                yield from piece

    def _steps(self) -> Iterator[tuple[list[Any], StepShape]]:
        """Yield this rank's samples of each step, reading only to the end of the step."""
        rows, ranks = self.rows_per_rank, self.num_processes
        full, mine = full_step(rows, ranks), slice(self.process_index * rows, (self.process_index + 1) * rows)
        stream = iter(self.dataset)
        first = list(islice(stream, min(self._start, rows * ranks)))
        next(islice(stream, self._start - len(first), self._start - len(first)), None)
        while step := list(islice(stream, rows * ranks)):
            first += step[: rows * ranks - len(first)]
            if len(step) == rows * ranks:
                yield step[mine], full
                continue
            if not self.drop_last:
                pieces, shape = split_step(
                    step, rows=rows, num_ranks=ranks, even=self.even_batches, first=first
                )
                yield pieces[self.process_index], shape
            return


class Marked:
    """A sample and the shape of its step; without a shape it marks a step of other ranks only, and has no sample."""

    __slots__ = ("sample", "shape")

    def __init__(self, sample: Any, shape: StepShape | None) -> None:
        self.sample = sample
        self.shape = shape
