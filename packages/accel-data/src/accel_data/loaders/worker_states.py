"""The state of map-style data that is read by workers: each has a copy of the data set, with a state of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, get_worker_info

from accel_state.errors import CheckpointError


class WorkerStates:
    """What the workers' copies of a data set were in when the last batch was handed out.

    Args:
        states: Of each worker, None for one that has had no batch yet.
        live_on: Whether the workers, and with them their copies, outlive the pass.
    """

    def __init__(self, states: Sequence[Any], *, live_on: bool) -> None:
        self._states = list(states)
        self._live_on = live_on
        self._turn = 0

    def note(self, worker: int, state: Any) -> None:
        """Note the state right after a batch, which ``worker`` has read and which has been handed out."""
        self._states[worker] = state
        self._turn = (worker + 1) % len(self._states)

    def after_pass(self) -> WorkerStates | None:
        """Return the states for the next pass, which the first worker begins; None if the copies are gone."""
        self._turn = 0
        return self if self._live_on else None

    def in_turn(self) -> list[Any]:
        """Return the states, that of the worker whose batch comes next first: new workers begin with the first."""
        return self._states[self._turn :] + self._states[: self._turn]


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
