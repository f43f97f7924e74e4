"""What is known about a batch, carried beside it: from where it is read, perhaps in a worker, to the loader's
loop.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from accel_data.iterable_shard import IterableDatasetShard, Marked
from accel_data.loaders.cloning import clone_loader
from accel_data.step_shape import StepShape


@dataclass(frozen=True, slots=True)
class Note:
    """What is known about a batch.

    Args:
        num_samples: Samples that it was made from; None without automatic batching.
        shape: The shape of its step.
        dataset_state: State of the data set right after it was read.
        worker: The worker whose copy of the data set was in that state; None for the data set itself.
        is_last: Whether the stream is known to have ended with it, in its worker.
        is_idle: Whether it is none of the stream's, and only takes up its worker's turn.
    """

    num_samples: int | None = None
    shape: StepShape | None = None
    dataset_state: Any = None
    worker: int | None = None
    is_last: bool = False
    is_idle: bool = False


class Idle:
    """A sample of a worker whose turn it is not yet; a batch of these is thrown away."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """A batch on its way out of the collation, perhaps to another process, with its note."""

    batch: Any
    note: Note

    def pin_memory(self, device: Any = None) -> Tagged:
        """Pin the batch; called by torch."""
        pinned = pin_memory(self.batch, device)  # type: ignore[no-untyped-call]
        return replace(self, batch=pinned)


class TaggingCollate:
    """Collate like ``collate``, from samples that may be `Marked`, and tag the batch.

    Args:
        collate: The loader's own.
        is_batching: Whether ``collate`` makes a batch from a list of samples, not from what the data set
            returned.
        dataset: Whose state to note after each batch, or in a worker that of its copy; None where that is of
            no use.
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

    def __call__(self, samples: Any) -> Tagged:
        if isinstance(samples[0] if self.is_batching and samples else samples, Idle):
            return Tagged(None, Note(is_idle=True))
        state, worker = self._state()
        if isinstance(samples, Marked):
            return Tagged(self.collate(samples.sample), Note(None, samples.shape, state, worker))
        num_samples, shape = len(samples) if self.is_batching else None, None
        is_last = num_samples is not None and num_samples != self.batch_size
        if self.is_batching and samples and isinstance(samples[0], Marked):
            shape = samples[0].shape
            samples = [marked.sample for marked in samples]
            is_last = not shape.is_plain
        return Tagged(self.collate(samples), Note(num_samples, shape, state, worker, is_last))

    def _state(self) -> tuple[Any, int | None]:
        """Return the state of the data set that is read here, and the worker if this is one."""
        if self.dataset is None:
            return None, None
        # A copy: what it is made of may be what the data set goes on to change, which is read ahead.
        info = get_worker_info()
        if info is None:
            return copy.deepcopy(self.dataset.state_dict()), None
        return copy.deepcopy(info.dataset.state_dict()), info.id  # type: ignore[attr-defined]


class Notes:
    """The note of the batch that was fetched last."""

    def __init__(self) -> None:
        self.last: Note | None = None

    def beside(self, batches: Iterable[Any]) -> Iterator[tuple[Any, Note | None]]:
        """Yield each batch with its note, None for a batch that came without one."""
        self.last = None
        for batch in batches:
            yield batch, self.last
            self.last = None


class _Untagging:
    """An iterator of torch's that hands out bare batches and keeps their notes; everything else is the inner
    one's.
    """

    def __init__(self, inner: Any, notes: Notes) -> None:
        self._inner = inner
        self._notes = notes

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        fetched = next(self._inner)
        while isinstance(fetched, Tagged) and fetched.note.is_idle:
            fetched = next(self._inner)
        if not isinstance(fetched, Tagged):
            return fetched
        self._notes.last = fetched.note
        return fetched.batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def tagging(loader: DataLoader[Any], notes: Notes, *, stateful_dataset: Any = None) -> DataLoader[Any]:
    """Return a loader that reads like ``loader`` and leaves in ``notes`` what is known about each batch.

    A class with an iteration of its own sees the batches without tags.

    Args:
        loader: The loader.
        notes: Where the notes go.
        stateful_dataset: Data set whose state is to be noted after each batch.
    """
    collate = TaggingCollate(
        loader.collate_fn,
        stateful_dataset,
        is_batching=loader._auto_collation,
        batch_size=loader.batch_size,
    )
    dataset = loader.dataset.marking() if isinstance(loader.dataset, IterableDatasetShard) else loader.dataset
    tagged = clone_loader(loader, dataset=dataset, collate_fn=collate)
    # Weakly: a cycle would keep the workers alive until the garbage collector comes by.
    itself = weakref.ref(tagged)

    def get_iterator() -> _Untagging:
        own = itself()
        assert own is not None, "called by the loader itself"
        return _Untagging(type(own)._get_iterator(own), notes)

    tagged.__dict__["_get_iterator"] = get_iterator
    return tagged
