"""Debug mode's barrier in the ranks' store, which names the ranks that do not come.

It is not a collective, so it also finds the rank that has raised, has ended, or waits in another collective.
Each rank makes three requests per call and then waits for one key; nothing is polled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from torch.distributed import PrefixStore, Store

from accel_ops.agreement.calls import Call, by_process, qualified
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException

DEADLINE_S = 30.0
_deadline_s: ContextVar[float] = ContextVar("accel_ops_debug_deadline_s", default=DEADLINE_S)
_COMPLETE = b"complete"


class AbsentRankError(DistributedOperationException):
    """A rank did not come to an operation in time. No collective has been started."""


@contextmanager
def debug_deadline(seconds: float) -> Iterator[None]:
    """Let this rank wait ``seconds`` instead of 30 for the others in each check of debug mode."""
    token = _deadline_s.set(seconds)
    try:
        yield
    finally:
        _deadline_s.reset(token)


def await_arrival(transport: Transport, call: Call) -> None:
    """Wait until every rank has come to an operation, whichever it is.

    Raises:
        AbsentRankError: If one does not come within the deadline. It raises too when it comes later, so that
            all ranks agree that the operation did not take place.
    """
    store = _store_of(transport)
    rank, world_size = transport.rank, transport.world_size
    description = call.describe()
    place = f"`{description.operation}` at {description.call_site}"
    era = store.add(f"era/{rank}", 0)
    number = store.add(f"{era}/calls/{rank}", 1)
    prefix = f"{era}/{number}"
    _, before, _ = _last_call(store, rank)
    store.set(f"last/{rank}", f"{prefix}\n{place}\n{before}")
    if store.add(f"{prefix}/arrived", 1) == world_size:
        store.compare_set(f"{prefix}/outcome", "", _COMPLETE.decode())
        if number > 1:  # all ranks have come here, so all have left the call before
            store.delete_key(f"{era}/{number - 1}/arrived")
            store.delete_key(f"{era}/{number - 1}/outcome")
    elif not _appears(store, f"{prefix}/outcome"):
        store.compare_set(f"{prefix}/outcome", "", f"given up by {rank}")
    if store.get(f"{prefix}/outcome") == _COMPLETE:
        return
    last = [_last_call(store, other) for other in range(world_size)]
    if all(where == prefix for where, _, _ in last):
        raise AbsentRankError(
            f"Process {rank} came to `{qualified(call.operation)}` after the other processes had given it up. "
            "See their errors."
        )
    raise AbsentRankError(_name_absent(call, prefix, last))


def begin_new_era(transport: Transport) -> None:
    """Count calls anew, on every rank: afterwards all are in step again, whatever each has called before."""
    _store_of(transport).add(f"era/{transport.rank}", 1)


def _store_of(transport: Transport) -> Store:
    return PrefixStore("accel_debug", transport.store)


def _appears(store: Store, key: str) -> bool:
    """Wait for a key until the deadline and tell whether it is there."""
    try:
        store.wait([key], timedelta(seconds=_deadline_s.get()))
    except RuntimeError:  # the kinds of store raise different errors when time is up, all of them this one
        return False
    return True


def earlier_divergence(transport: Transport) -> str:
    """Return a hint if the ranks made the call before the present one from different places."""
    store = _store_of(transport)
    return _divergence([_last_call(store, rank)[2] for rank in range(transport.world_size)])


def _divergence(places: Sequence[str]) -> str:
    if "" in places or len(set(places)) == 1:
        return ""
    return (
        "\nThe operation before was already called from different places, as happens when one of the calls is "
        f"under a condition such as `if accelerator.is_main_process`:\n{by_process(places)}"
    )


def _last_call(store: Store, rank: int) -> tuple[str, str, str]:
    """Return the last call of a rank: its number, its place, and the place of the call before it."""
    if not store.check([f"last/{rank}"]):
        return "", "", ""
    where, place, before = store.get(f"last/{rank}").decode().split("\n")
    return where, place, before


def _name_absent(call: Call, prefix: str, last: list[tuple[str, str, str]]) -> str:
    description = call.describe()
    absent = {rank: place for rank, (where, place, _) in enumerate(last) if where != prefix}
    names = ", ".join(str(rank) for rank in absent)
    lines = [place if where == prefix else "has not come" for where, place, _ in last]
    earlier = [before if where == prefix else place for where, place, before in last]
    seen = "".join(f"\nProcess {rank} was last seen in {place}." for rank, place in absent.items() if place)
    return (
        f"Cannot apply desired operation: process {names} did not come to `{description.operation}` within "
        f"{_deadline_s.get():g} seconds. It has raised, has ended, is busy with something else, or the call is "
        "under a condition that does not hold there.\n\n"
        f"Operation: `{description.operation}` on {description.shapes}\nCalled from:\n{by_process(lines)}{seen}"
        f"{_divergence(earlier)}"
    )
