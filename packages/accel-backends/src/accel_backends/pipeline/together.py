"""Run a function on every rank; raise on all ranks if it fails on one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from accel_ops.agreement import Call
from accel_ops.objects import gather_each
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException

T = TypeVar("T")


def run_together(
    compute: Callable[[], T],
    *,
    transport: Transport,
    operation: Callable[..., Any],
    inputs: str,
    partners: Collection[int],
) -> list[T]:
    """Return the pickled result of ``compute`` on each rank, in rank order. Every rank must call it.

    Args:
        compute: The function; it must not leave another rank waiting when it fails.
        transport: Between the ranks.
        operation: The operation in error messages.
        inputs: A description of the inputs, which must be equal on all ``partners``; this rank is one of them.
        partners: Ranks.

    Raises:
        DistributedOperationException: If another rank failed, or does something else, or a partner has other inputs.
            A rank that fails raises its own error.
    """
    result, error = None, None
    try:
        result = compute()
    except BaseException as raised:  # noqa: BLE001 - raised again when the other ranks know of it
        error = raised
    failure = None if error is None else f"{type(error).__name__}: {error}"
    reports = gather_each(transport, Call(operation), (failure, inputs, tuple(partners), result))
    if error is not None:
        raise error
    of_partners: dict[tuple[int, ...], tuple[int, str]] = {}
    for rank, (failure, its_inputs, its_partners, _) in enumerate(reports):
        if failure is not None:
            raise DistributedOperationException(f"Process {rank} failed in its stage of the model. {failure}")
        first, expected = of_partners.setdefault(its_partners, (rank, its_inputs))
        if its_inputs != expected:
            raise DistributedOperationException(
                f"All stages of a pipeline must be given the same inputs. Process {first} has {expected}, process "
                f"{rank} has {its_inputs}. Read them in the same order in each process."
            )
    return [result for *_, result in reports]
