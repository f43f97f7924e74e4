"""The barrier of debug mode, in the store of the process group; names the ranks that do not arrive.

It is not a collective, so it also detects a rank that has raised, has ended, or waits in another collective.
Each rank makes three requests per call and then waits for one key; nothing is polled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_state.errors import DistributedOperationException
from accel_state.user_warnings import call_site

_deadline_s: ContextVar[float] = ContextVar("accel_debug_deadline_s", default=30.0)
debug_deadline_s = _deadline_s.get
_COMPLETE, _TIMED_OUT = "complete", "timed out"


class AbsentRankError(DistributedOperationException):
    """A rank did not reach an operation in time. No collective has been started."""


@contextmanager
def debug_deadline(seconds: float) -> Iterator[None]:
    """Set the time that this rank waits for the other ranks in each check of debug mode, instead of 30 seconds.

    Some stores round up to seconds.
    """
    token = _deadline_s.set(seconds)
    try:
        yield
    finally:
        _deadline_s.reset(token)


def await_arrival(
    store: Store, rank: int, world_size: int, operation: str, *, data: str = "", kind: str = ""
) -> None:
    """Wait until every rank has reached an ``operation`` of this ``kind``, by default the same operation.

    Every rank must call it.

    Raises:
        AbsentRankError: If a rank does not arrive within the deadline. A rank that arrives later raises as well, so
            that all ranks agree that the operation did not take place.
        DistributedOperationException: On every rank, if the kinds differ.
    """
    store = PrefixStore("accel_debug", store)
    number = store.add(f"calls/{rank}", 1)
    _, before, _, _ = _last_call(store, rank)
    place = f"`{operation}` at {call_site()}"
    store.set(f"last/{rank}", f"{number}\n{before}\n{place}\n{kind or operation}")
    outcome = f"{number}/outcome"
    num_arrived = store.add(f"{number}/arrived", 1)
    is_late = store.check([outcome])
    if num_arrived == world_size:
        store.compare_set(outcome, "", _difference(store, world_size) or _COMPLETE)
        # All ranks have arrived here, so none reads the keys of the previous call; without this, the store would grow.
        for key in ("arrived", "outcome"):
            store.delete_key(f"{number - 1}/{key}")
    elif not is_late and not _appears(store, outcome):
        store.compare_set(outcome, "", _TIMED_OUT)
    reached = store.get(outcome).decode()
    if reached == _COMPLETE:
        return
    if reached != _TIMED_OUT:
        raise DistributedOperationException(
            "Cannot apply desired operation: the processes called different operations, and each would wait for the "
            f"others. Make the same calls in the same order on all processes.\n\nOperations:\n{reached}"
        )
    last = [_last_call(store, other) for other in range(world_size)]
    absent = [other for other, (where, *_) in enumerate(last) if where < number]
    if is_late or not absent:
        raise AbsentRankError(
            f"Process {rank} reached `{operation}` after the other processes had stopped waiting. See their errors."
        )
    lines = [
        "has not reached it" if other in absent else place for other, (_, place, _, _) in enumerate(last)
    ]
    earlier = [place if other in absent else before for other, (_, place, before, _) in enumerate(last)]
    seen = "".join(
        f"\nProcess {other} was last seen in {last[other][1]}." for other in absent if last[other][1]
    )
    raise AbsentRankError(
        f"Cannot apply desired operation: process {', '.join(map(str, absent))} did not reach `{operation}` within "
        f"{_deadline_s.get():g} seconds. It has raised, has ended, is busy with something else, or the call is "
        "under a condition that is false there. If it works for longer, set the limit with "
        f"`accel_ops.debug_deadline(seconds)`.\n\nOperation: `{operation}`{data and f' on {data}'}\n"
        f"Called from:\n{by_process(lines)}{seen}{_divergence(earlier)}"
    )


def earlier_divergence(store: Store, *, world_size: int) -> str:
    """Return a hint if the ranks made the call before the present one from different places."""
    return _divergence([_last_call(PrefixStore("accel_debug", store), rank)[2] for rank in range(world_size)])


def by_process(lines: Sequence[str]) -> str:
    """Return one line per rank."""
    return "\n".join(f"  - Process {rank}: {line}" for rank, line in enumerate(lines))


def _appears(store: Store, key: str) -> bool:
    """Wait for a key until the deadline and return whether it is there."""
    try:
        store.wait([key], timedelta(seconds=_deadline_s.get()))
    except RuntimeError:  # stores raise different subclasses at the deadline
        return False
    return True


def _difference(store: Store, world_size: int) -> str:
    """Return the calls of all ranks, which have arrived, if they are different operations."""
    last = [_last_call(store, rank) for rank in range(world_size)]
    if len({kind for *_, kind in last}) == 1:
        return ""
    places, earlier = [place for _, place, _, _ in last], [before for _, _, before, _ in last]
    return f"{by_process(places)}{_divergence(earlier)}"


def _divergence(places: Sequence[str]) -> str:
    if "" in places or len(set(places)) == 1:
        return ""
    return (
        "\nThe operation before was already called from different places, as happens when one of the calls is "
        f"under a condition such as `if accelerator.is_main_process` or `if rank == 0`:\n{by_process(places)}"
    )


def _last_call(store: Store, rank: int) -> tuple[int, str, str, str]:
    """Return the number of a rank's last call, its call site, the call site before it, and its kind."""
    if not store.check([f"last/{rank}"]):
        return -1, "", "", ""
    number, before, place, kind = store.get(f"last/{rank}").decode().split("\n")
    return int(number), place, before, kind
