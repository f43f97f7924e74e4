"""What is known about a batch, passed beside it from where it is read, which may be a worker, to the loader."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from accel_data.iterable_shard import Marked, Placeholder
from accel_data.step import StepShape


@dataclass(frozen=True, slots=True)
class BatchMetadata:
    """What is known about a batch.

    Args:
        num_samples: Samples that it was made from; None without automatic batching.
        shape: The shape of its step.
        dataset_state: State of the data set right after the batch was read.
        worker: The worker whose copy of the data set had that state; None for the data set itself.
        is_last: Whether the stream is known to have ended with it, in its worker.
        is_placeholder: Whether it is made of `Placeholder` samples.
    """

    num_samples: int | None = None
    shape: StepShape | None = None
    dataset_state: Any = None
    worker: int | None = None
    is_last: bool = False
    is_placeholder: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch with its metadata."""

    batch: Any
    metadata: BatchMetadata

    def pin_memory(self, device: Any = None) -> Fetched:
        """Pin the batch; called by torch."""
        pinned = pin_memory(self.batch, device)  # type: ignore[no-untyped-call]
        return replace(self, batch=pinned)


class MetadataCollate:
    """Collate like ``collate``, from samples that may be `Marked`, and return a `Fetched` batch.

    Args:
        collate: The loader's own.
        dataset: Its state is kept after each batch, in a worker that of the worker's copy. None: no state is kept.
        is_batching: Whether ``collate`` makes a batch from a list of samples, not from what the data set
            returned.
        batch_size: Samples of a full batch, None without automatic batching.
    """

    def __init__(
        self,
        collate: Callable[[Any], Any],
        dataset: Any = None,
        *,
        is_batching: bool,
        batch_size: int | None = None,
    ) -> None:
        self.collate = collate
        self.is_batching = is_batching
        self.batch_size = batch_size
        self.dataset = dataset

    def __call__(self, samples: Any) -> Fetched:
        sample = samples[0] if self.is_batching and samples else samples
        if isinstance(sample, Placeholder):
            return Fetched(None, BatchMetadata(is_last=sample.is_last, is_placeholder=True))
        state, worker = self._state()
        if isinstance(samples, Marked):
            return Fetched(self.collate(samples.sample), BatchMetadata(None, samples.shape, state, worker))
        num_samples, shape = len(samples) if self.is_batching else None, None
        is_last = num_samples is not None and num_samples != self.batch_size
        if self.is_batching and samples and isinstance(samples[0], Marked):
            shape = samples[0].shape
            samples = [marked.sample for marked in samples]
            is_last = not shape.is_full
        return Fetched(self.collate(samples), BatchMetadata(num_samples, shape, state, worker, is_last))

    def _state(self) -> tuple[Any, int | None]:
        """Return the state of the data set that is read here, and the worker if this is one."""
        if self.dataset is None:
            return None, None
        # A copy: the data set may go on to change the objects that its state is made of.
        info = get_worker_info()
        if info is None:
            return copy.deepcopy(self.dataset.state_dict()), None
        return copy.deepcopy(info.dataset.state_dict()), info.id  # type: ignore[attr-defined]
