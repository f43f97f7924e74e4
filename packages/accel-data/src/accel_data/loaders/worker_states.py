"""The state of a data set that workers read: each worker has a copy, with a state of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import get_worker_info

from accel_data.dataset_proxy import DatasetProxy
from accel_data.iterable_shard import Placeholder
from accel_data.loaders.reader import Batches, Reader
from accel_state.errors import CheckpointError


class WorkerStates:
    """The states of the workers' copies of a data set after the last batch that was yielded.

    Args:
        states: Of each worker, None for one without a batch so far.
        are_persistent: Whether the workers, and with them their copies, outlive the pass.
        turn: The worker whose batch comes next.
        ended: Of each worker, whether the stream that it reads has ended.
    """

    def __init__(
        self,
        states: Sequence[Any],
        *,
        are_persistent: bool,
        turn: int = 0,
        ended: Sequence[bool] | None = None,
    ) -> None:
        self._states = list(states)
        self._are_persistent = are_persistent
        self._turn = turn
        self._ended = [False] * len(states) if ended is None else list(ended)

    def update(self, worker: int, state: Any, *, is_last: bool = False) -> None:
        """Set the state of ``worker`` after a batch that it has read and that was yielded."""
        self._states[worker] = state
        self._ended[worker] = is_last
        self._turn = (worker + 1) % len(self._states)

    def after_pass(self) -> WorkerStates | None:
        """Return the states for the next pass, which the first worker begins; None if the copies are gone."""
        self._turn = 0
        return self if self._are_persistent else None

    def in_turn(self) -> list[Any]:
        """Return the states, beginning with that of the worker whose batch comes next.

        New workers are given them in this order: any worker may read any batch of map-style data.
        """
        return self._states[self._turn :] + self._states[: self._turn]

    def of_stream(self) -> dict[str, Any]:
        """Return the states by worker, and whose turn it is: which part of a stream a worker reads may depend on
        its number.
        """
        return {"states": list(self._states), "ended": list(self._ended), "turn": self._turn}


class RestoreState:
    """A `worker_init_fn` that calls the loader's own and then restores the state of the worker's data set."""

    def __init__(self, states: Sequence[Any], then: Callable[[int], object] | None) -> None:
        self._states = states
        self._then = then

    def __call__(self, worker: int) -> None:
        if self._then is not None:
            self._then(worker)
        info = get_worker_info()
        assert info is not None, "called by torch in a worker"
        if self._states[worker] is not None:
            info.dataset.load_state_dict(self._states[worker])  # type: ignore[attr-defined]


def check_number(states: Sequence[Any], num_workers: int) -> None:
    """Refuse states that cannot be given to as many workers.

    Raises:
        CheckpointError: If there is not one state for each.
    """
    if len(states) != num_workers:
        raise CheckpointError(
            f"The state of the data set was saved with {len(states)} workers, each with a copy, and cannot be "
            f"restored with `num_workers={num_workers}`. Use `num_workers={len(states)}`, or begin "
            "the epoch anew with `position=False`."
        )


def restore_workers(reader: Reader, states: Sequence[Any]) -> None:
    """Let the next pass of ``reader`` begin with new workers, each with one of ``states``."""
    reader.restart_workers_with(worker_init_fn=RestoreState(states, reader.loader.worker_init_fn))


def resume_stream(reader: Reader, state: dict[str, Any]) -> Batches:
    """Return the rest of a stream that the workers of ``state`` have begun, read by new workers in their order."""
    loader = reader.loader
    num_samples = (loader.batch_size or 1) if loader._auto_collation else 1
    reader.restart_workers_with(dataset=_ResumedStream(loader.dataset, state, num_placeholders=num_samples))
    return reader.read()


class _ResumedStream(DatasetProxy):
    """A stream that each worker resumes from a state of its own, in the turn that it had.

    Torch begins with the first worker. Those before the one whose turn it is yield a batch of placeholders.
    """

    def __init__(self, dataset: Any, state: dict[str, Any], *, num_placeholders: int) -> None:
        self._state: dict[str, Any] | None = state
        self._num_placeholders = num_placeholders
        super().__init__(dataset)

    def __iter__(self) -> Iterator[Any]:
        state = self._state
        self._state = None
        if state is None:  # a later pass of a persistent worker
            yield from self.dataset
            return
        info = get_worker_info()
        assert info is not None, "read in a worker"
        if state["states"][info.id] is not None:
            self.dataset.load_state_dict(state["states"][info.id])
        if info.id < state["turn"]:
            yield from [Placeholder()] * self._num_placeholders
        if not state["ended"][info.id]:
            yield from self.dataset
