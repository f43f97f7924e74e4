"""Work that each rank does on its own, and that fails on all if it fails on one."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, TypeVar

from accel_ops.agreement import Call
from accel_ops.objects import gather_each
from accel_ops.transport import Transport
from accel_state.errors import DistributedOperationException

T = TypeVar("T")


def run_together(
    transport: Transport,
    compute: Callable[[], T],
    *,
    operation: Callable[..., Any],
    inputs: str = "",
    partners: Collection[int],
) -> T:
    """Return what ``compute`` returns, once all ranks are done. Every rank must call it.

    Args:
        transport: Between the ranks.
        compute: The work of this rank; it must not leave another rank waiting when it fails.
        operation: What the ranks do, for messages.
        inputs: What this rank works on, in words.
        partners: The ranks whose inputs must be equal, this one among them.

    Raises:
        DistributedOperationException: If another rank failed, or does something else, or a partner has other inputs.
            A rank that fails raises its own error.
    """
    results: list[T] = []
    results_together(
        transport,
        lambda: results.append(compute()),
        operation=operation,
        inputs=inputs,
        partners=partners,
    )
    return results[0]


def results_together(
    transport: Transport,
    compute: Callable[[], T],
    *,
    operation: Callable[..., Any],
    inputs: str = "",
    partners: Collection[int],
) -> list[T]:
    """Return what ``compute`` returned on each rank, which is pickled, in rank order; else as `run_together`."""
    result, error = None, None
    try:
        result = compute()
    except BaseException as raised:  # noqa: BLE001 - raised again when the other ranks have been told
        error = raised
    failure = None if error is None else f"{type(error).__name__}: {error}"
    told = gather_each(transport, Call(operation), (failure, inputs, tuple(partners), result))
    if error is not None:
        raise error
    of_partners: dict[tuple[int, ...], tuple[int, str]] = {}
    for rank, (failure, its_inputs, its_partners, _) in enumerate(told):
        if failure is not None:
            raise DistributedOperationException(f"Process {rank} failed in its stage of the model. {failure}")
        first, expected = of_partners.setdefault(its_partners, (rank, its_inputs))
        if its_inputs != expected:
            raise DistributedOperationException(
                f"All stages of a pipeline must be given the same inputs. Process {first} has {expected}, process "
                f"{rank} has {its_inputs}. Let each process read them in the same order."
            )
    return [result for *_, result in told]
