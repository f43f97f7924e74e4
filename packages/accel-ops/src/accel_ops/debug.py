"""Debug mode for functions that users write.

On with ``ACCELERATE_DEBUG_MODE`` or ``accel launch --debug``. Every operation of this package then first
waits, through the process group's store, until all ranks have arrived, and compares their calls on every device.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from accel_ops.agreement import SAME_SHAPES, Call, agree, is_debugging, qualified, signature_of
from accel_ops.transport import current_transport
from accel_state.errors import DistributedOperationException

P = ParamSpec("P")
R = TypeVar("R")


def verify_operation(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that all ranks must call with the same structure, dtypes and shapes first.

    In debug mode each call first compares operation, arguments and input with the other ranks, and raises
    ``DistributedOperationException`` on every rank if they differ, or if a rank does not arrive within 30
    seconds. Without debug mode it only calls the function.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def verified(*args: P.args, **kwargs: P.kwargs) -> R:
        if is_debugging() and current_transport().world_size > 1:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            data, *arguments = bound.arguments.values()
            call = Call(function, tuple(arguments), signature_of(data, SAME_SHAPES), data, SAME_SHAPES)
            agree(current_transport(), call)
        return function(*args, **kwargs)

    return verified


def chained_operation(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function made of several operations, so that an error of one operation also names it."""

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
