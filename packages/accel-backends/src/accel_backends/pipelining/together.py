"""Work that each rank does on its own, and that fails on all if it fails on one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from accel_ops.agreement.calls import Call
from accel_ops.collectives.objects import gather_each
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException

T = TypeVar("T")


def run_together(
    transport: Transport,
    compute: Callable[[], T],
    *,
    operation: Callable[..., Any],
    arguments: tuple[Any, ...] = (),
) -> T:
    """Return what ``compute`` returns, once all ranks are done. Every rank must call it.

    Args:
        transport: Between the ranks.
        compute: The work of this rank; it must not leave another rank waiting when it fails.
        operation: What the ranks do, for messages.
        arguments: Plain values that must be equal on all ranks.

    Raises:
        DistributedOperationException: If another rank failed, or does something else. A rank that fails raises its
            own error.
    """
    result, error = None, None
    try:
        result = compute()
    except BaseException as raised:  # noqa: BLE001 - raised again when the other ranks have been told
        error = raised
    failure = None if error is None else f"{type(error).__name__}: {error}"
    told = gather_each(transport, Call(operation, arguments), failure)
    if error is not None:
        raise error
    for rank, failure in enumerate(told):
        if failure is not None:
            raise DistributedOperationException(f"Process {rank} failed in its stage of the model. {failure}")
    return cast(T, result)
