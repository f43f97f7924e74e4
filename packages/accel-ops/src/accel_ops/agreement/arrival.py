"""Debug mode's barrier in the ranks' store, which names the ranks that do not come.

It is not a collective, so it also finds the rank that has raised, has ended, or waits in another collective.
Each rank makes three requests per call and then waits for one key; nothing is polled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta

from torch.distributed.distributed_c10d import PrefixStore, Store

from accel_ops.agreement.calls import Call, CallDescription, by_process
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException

DEADLINE_S = 30.0
_deadline_s: ContextVar[float] = ContextVar("accel_ops_debug_deadline_s", default=DEADLINE_S)
_COMPLETE = b"complete"


class AbsentRankError(DistributedOperationException):
    """A rank did not come to an operation in time. No collective has been started."""


@contextmanager
def debug_deadline(seconds: float) -> Iterator[None]:
    """Let this rank wait ``seconds`` instead of 30 for the others in each check of debug mode.

    Some stores round up to whole seconds.
    """
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
    era = store.add(f"era/{rank}", 0)
    number = store.add(f"{era}/calls/{rank}", 1)
    _, _, before = _last_call(store, rank)
    place = f"`{description.operation}` at {description.call_site}"
    store.set(f"last/{rank}", f"{era}\n{number}\n{before}\n{place}")
    outcome = f"{era}/{number}/outcome"
    num_arrived = store.add(f"{era}/{number}/arrived", 1)
    is_late = store.check([outcome])
    if num_arrived == world_size:
        store.compare_set(outcome, "", _COMPLETE.decode())
        # All ranks have come here, so all have left the call before.
        for key in ("arrived", "outcome"):
            store.delete_key(f"{era}/{number - 1}/{key}")
    elif not is_late and not _appears(store, outcome):
        store.compare_set(outcome, "", "given up")
    if store.get(outcome) == _COMPLETE:
        return
    last = [_last_call(store, other) for other in range(world_size)]
    absent = [other for other, (where, _, _) in enumerate(last) if where < (era, number)]
    if is_late or not absent:
        raise AbsentRankError(
            f"Process {rank} came to `{description.operation}` after the other processes had given it up. "
            "See their errors."
        )
    raise AbsentRankError(_name_absent(description, absent, last))


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
    return _divergence([_last_call(store, rank)[1] for rank in range(transport.world_size)])


def _divergence(places: Sequence[str]) -> str:
    if "" in places or len(set(places)) == 1:
        return ""
    return (
        "\nThe operation before was already called from different places, as happens when one of the calls is "
        f"under a condition such as `if accelerator.is_main_process`:\n{by_process(places)}"
    )


def _last_call(store: Store, rank: int) -> tuple[tuple[int, int], str, str]:
    """Return the era and number of a rank's last call, the place of the call before it, and its own place."""
    if not store.check([f"last/{rank}"]):
        return (-1, -1), "", ""
    era, number, before, place = store.get(f"last/{rank}").decode().split("\n")
    return (int(era), int(number)), before, place


def _name_absent(
    description: CallDescription, absent: Sequence[int], last: Sequence[tuple[tuple[int, int], str, str]]
) -> str:
    names = ", ".join(str(rank) for rank in absent)
    lines = ["has not come" if rank in absent else place for rank, (_, _, place) in enumerate(last)]
    earlier = [place if rank in absent else before for rank, (_, before, place) in enumerate(last)]
    seen = "".join(f"\nProcess {rank} was last seen in {last[rank][2]}." for rank in absent if last[rank][2])
    return (
        f"Cannot apply desired operation: process {names} did not come to `{description.operation}` within "
        f"{_deadline_s.get():g} seconds. It has raised, has ended, is busy with something else, or the call is "
        "under a condition that does not hold there.\n\n"
        f"Operation: `{description.operation}` on {description.shapes}\nCalled from:\n{by_process(lines)}{seen}"
        f"{_divergence(earlier)}"
    )
