"""Debug mode: before a collective starts, the ranks compare what they are about to do.

On with ``ACCELERATE_DEBUG_MODE`` or ``accel launch --debug``. The comparison goes through the process
group's store, not through a collective, so it also finds the rank that never comes and those that went to
another operation.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

from accel_ops.faults import SAME_SHAPES, CallReport, by_process, describe, explain_difference, qualified
from accel_ops.transport import Transport, current_transport
from accel_state.errors import DistributedOperationException
from accel_state.runtime import current_runtime, has_runtime

P = ParamSpec("P")
R = TypeVar("R")

DEADLINE_S = 30.0
_deadline_s: ContextVar[float] = ContextVar("accel_ops_debug_deadline_s", default=DEADLINE_S)
_is_inside: ContextVar[bool] = ContextVar("accel_ops_debug_is_inside", default=False)


@contextmanager
def debug_deadline(seconds: float) -> Iterator[None]:
    """Let this rank wait ``seconds`` instead of 30 for the others in each check of the debug mode."""
    token = _deadline_s.set(seconds)
    try:
        yield
    finally:
        _deadline_s.reset(token)


def verify_operation(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that all ranks must call with the same structure, dtypes and shapes first.

    In debug mode each call first compares operation, arguments and input with the other ranks, and raises
    ``DistributedOperationException`` on every rank if they differ, or if a rank has not come within 30
    seconds. Functions called inside are not checked again. Without debug mode the function is called and
    nothing else.
    """
    return verify_call(aspects=SAME_SHAPES)(function)


def verify_call(*, aspects: Sequence[str]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate like :func:`verify_operation`, but compare only the given aspects of the first argument."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def verified(*args: P.args, **kwargs: P.kwargs) -> R:
            if not has_runtime() or not current_runtime().debug or _is_inside.get():
                return function(*args, **kwargs)
            transport = current_transport()
            if transport.world_size > 1:
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                data, *arguments = bound.arguments.values()
                if not aspects:
                    data = None
                _compare(transport, describe(function, arguments=arguments, data=data, aspects=aspects))
            token = _is_inside.set(True)
            try:
                return function(*args, **kwargs)
            finally:
                _is_inside.reset(token)

        return verified

    return decorate


def chained_operation(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function made of several operations, so that an error of one of them also names it."""

    @functools.wraps(function)
    def chained(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except DistributedOperationException as error:
            raise DistributedOperationException(
                f"Error found while calling `{qualified(function)}`. "
                f"Please see the earlier error for more details.\n\n{error}"
            ) from error

    return chained


def _compare(transport: Transport, own: CallReport) -> None:
    """Pin up this rank's call, read those of the others, and raise if they do not fit together."""
    bulletin = transport.bulletin()
    deadline_s = _deadline_s.get()
    bulletin.post(own.to_json())
    notes = bulletin.collect(deadline_s=deadline_s)
    if None in notes:
        raise DistributedOperationException(_name_absent(transport, own, notes, deadline_s))
    reports = [CallReport.from_json(note) for note in notes if note is not None]
    problem = explain_difference(reports)
    if problem is not None:
        raise DistributedOperationException(problem + _earlier_divergence(transport))


def _name_absent(
    transport: Transport, own: CallReport, notes: Sequence[str | None], deadline_s: float
) -> str:
    absent = [rank for rank, note in enumerate(notes) if note is None]
    here = [CallReport.from_json(note) if note is not None else None for note in notes]
    before = [transport.bulletin().previous(rank) for rank in absent]
    last = [
        f"process {rank} was last seen in `{report.operation}` at {report.call_site}"
        for rank, note in zip(absent, before, strict=True)
        if note is not None
        for report in [CallReport.from_json(note)]
    ]
    lines = [f"`{report.operation}` at {report.call_site}" if report else "has not come" for report in here]
    names = ", ".join(str(rank) for rank in absent)
    return (
        f"Cannot apply desired operation: process {names} did not come to `{own.operation}` within "
        f"{deadline_s:g} "
        "seconds. It has raised, has ended, is busy with something else, or the call is under a condition "
        "that "
        f"does not hold there.\n\nOperation: `{own.operation}` on {own.shapes}\n"
        f"Called from:\n{by_process(lines)}"
        + "".join(f"\n{line[0].upper()}{line[1:]}." for line in last)
        + _earlier_divergence(transport)
    )


def _earlier_divergence(transport: Transport) -> str:
    """Return a hint if the calls of the round before did fit together, but came from different places."""
    notes = [transport.bulletin().previous(rank) for rank in range(transport.world_size)]
    reports = [CallReport.from_json(note) for note in notes if note is not None]
    if len(reports) < transport.world_size or len({report.call_site for report in reports}) == 1:
        return ""
    return (
        f"\nThe operation before (`{reports[0].operation}`) was already called from different places, as "
        "happens "
        "when one of the calls is under a condition such as `if accelerator.is_main_process`:\n"
        + by_process([report.call_site for report in reports])
    )
