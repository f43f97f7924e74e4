"""The state of data that is read by workers: each has a copy of the data set, with a state of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from accel_data.loaders.tagging import Idle
from accel_data.stand_in import StandIn
from accel_state.errors import CheckpointError


class WorkerStates:
    """What the workers' copies of a data set were in when the last batch was handed out.

    Args:
        states: Of each worker, None for one that has had no batch yet.
        live_on: Whether the workers, and with them their copies, outlive the pass.
        turn: The worker whose batch comes next.
        ended: Of each worker, whether the stream that it reads has ended.
    """

    def __init__(
        self,
        states: Sequence[Any],
        *,
        live_on: bool,
        turn: int = 0,
        ended: Sequence[bool] | None = None,
    ) -> None:
        self._states = list(states)
        self._live_on = live_on
        self._turn = turn
        self._ended = [False] * len(states) if ended is None else list(ended)

    def note(self, worker: int, state: Any, *, is_last: bool = False) -> None:
        """Note the state right after a batch, which ``worker`` has read and which has been handed out."""
        self._states[worker] = state
        self._ended[worker] = is_last
        self._turn = (worker + 1) % len(self._states)

    def after_pass(self) -> WorkerStates | None:
        """Return the states for the next pass, which the first worker begins; None if the copies are gone."""
        self._turn = 0
        return self if self._live_on else None

    def in_turn(self) -> list[Any]:
        """Return the states, that of the worker whose batch comes next first: new workers begin with the first.

        It is of no matter which worker reads which batch of map-style data.
        """
        return self._states[self._turn :] + self._states[: self._turn]

    def of_stream(self) -> dict[str, Any]:
        """Return the states by worker, and which begins: what a worker reads of a stream may depend on its number."""
        return {"states": list(self._states), "ended": list(self._ended), "turn": self._turn}


class _Restore:
    """Set a worker up as the user asked for, and give its copy of the data set its state."""

    def __init__(self, states: Sequence[Any], given: Callable[[int], object] | None) -> None:
        self._states = states
        self._given = given

    def __call__(self, worker: int) -> None:
        if self._given is not None:
            self._given(worker)
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
            f"The data set has a state, of which {len(states)} workers had a copy each when it was saved: it "
            f"cannot be restored with `num_workers={num_workers}`. Use `num_workers={len(states)}`, or begin "
            "the epoch anew with `position=False`."
        )


def iterate_with(loader: DataLoader[Any], states: Sequence[Any]) -> Iterator[Any]:
    """Start new workers, each with one of ``states``, and return the iterator over what they read."""
    given = loader.worker_init_fn
    loader.__dict__.update(_iterator=None, worker_init_fn=_Restore(states, given))
    try:
        return iter(loader)
    finally:
        # Workers of later passes are copies of the data set here, as ever.
        loader.__dict__["worker_init_fn"] = given


class _Continued(StandIn):
    """A stream that each worker goes on with from a state of its own, once the turn has come to it."""

    def __init__(self, dataset: Any, state: dict[str, Any], *, num_idle: int) -> None:
        self._state: dict[str, Any] | None = state
        self._num_idle = num_idle
        super().__init__(dataset)

    def __iter__(self) -> Iterator[Any]:
        state = self._state
        self._state = None
        if state is None:  # a later pass of a worker that lives on
            yield from self.dataset
            return
        info = get_worker_info()
        assert info is not None, "read in a worker"
        if state["states"][info.id] is not None:
            self.dataset.load_state_dict(state["states"][info.id])
        if info.id < state["turn"]:
            yield from [Idle()] * self._num_idle
        if not state["ended"][info.id]:
            yield from self.dataset


def continue_stream(loader: DataLoader[Any], state: dict[str, Any]) -> Iterator[Any]:
    """Start new workers that go on with a stream where those of ``state`` left off, in their order."""
    given = loader.dataset
    num_idle = (loader.batch_size or 1) if loader._auto_collation else 1
    loader.__dict__.update(_iterator=None, dataset=_Continued(given, state, num_idle=num_idle))
    try:
        return iter(loader)
    finally:
        # Workers of later passes begin with the data set here, as ever.
        loader.__dict__["dataset"] = given
