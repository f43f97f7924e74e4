"""Find the largest batch size that fits into memory, the same on every rank."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, overload

from accel_ops.memory.oom_agreement import Try
from accel_ops.memory.release import clear_device_cache, should_reduce_batch_size
from accel_ops.transport import current_transport
from accel_state.arrival import AbsentRankError
from accel_state.errors import ConfigError, StateError
from accel_state.process_group import is_group_up


@overload
def find_executable_batch_size(
    function: None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]: ...
@overload
def find_executable_batch_size(
    function: Callable[..., Any],
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Callable[..., Any]: ...
def find_executable_batch_size(
    function: Callable[..., Any] | None = None,
    starting_batch_size: int = 128,
    reduce_batch_size_fn: Callable[..., int] | None = None,
) -> Callable[..., Any]:
    """Call a function that takes the batch size first with ever smaller sizes while memory runs out.

    The caller leaves the batch size out. Whatever needs device memory must be made inside the function;
    before each try what the last one left is collected. A later call starts with the size that the last one
    ended with.

    Where there are several processes, all must call the function. Each try ends with an agreement: if memory
    ran out on one rank, all ranks try the smaller size, also those that had finished. What cannot be
    recovered is a rank that waits in a collective for the one whose memory ran out: the search ends on all
    ranks with an error that says so, and the process group with it. Start with a size that at least the first
    steps fit in on every rank.

    Args:
        function: What to decorate; without it a decorator is returned.
        starting_batch_size: The first size to try.
        reduce_batch_size_fn: Returns the next size to try, given the current one (or nothing, if it takes no
            argument). By default half of it, rounded down.

    Raises:
        TypeError: If the caller passes a batch size.
        RuntimeError: If the size has come down to zero.
        ConfigError: If ``reduce_batch_size_fn`` does not reduce it.
        StateError: If another rank failed, or waited in a collective for one whose memory ran out.
    """
    if function is None:
        return functools.partial(
            find_executable_batch_size,
            starting_batch_size=starting_batch_size,
            reduce_batch_size_fn=reduce_batch_size_fn,
        )
    smaller = _with_argument(reduce_batch_size_fn or (lambda size: size // 2))
    batch_size = starting_batch_size

    @functools.wraps(function)
    def search(*args: Any, **kwargs: Any) -> Any:
        nonlocal batch_size
        _refuse_batch_size(function, args)
        clear_device_cache(garbage_collection=True)
        while batch_size > 0:
            has_finished, result = _try(function, batch_size, args, kwargs)
            if has_finished:
                return result
            clear_device_cache(garbage_collection=True)
            too_large, batch_size = batch_size, smaller(batch_size)
            if batch_size >= too_large:
                raise ConfigError(
                    f"`reduce_batch_size_fn` must return a smaller batch size than {too_large}, for which memory did "
                    f"not suffice, got {batch_size}."
                )
        raise RuntimeError("No executable batch size found, reached zero.")

    return search


def _try(
    function: Callable[..., Any], batch_size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """Call the function and agree with the other ranks; return whether it worked on all, and the result."""
    # The function may set the process group up itself, or end it.
    attempt = Try(current_transport()) if is_group_up() else None
    try:
        result = function(batch_size, *args, **kwargs)
    except BaseException as error:
        # The traceback, which holds the function's tensors, ends with this block.
        if should_reduce_batch_size(error):
            attempt = attempt or Try(current_transport())
            if attempt.must_repeat("out of memory"):
                return False, None
        elif attempt is not None and _must_repeat_after(error, attempt):
            return False, None
        raise
    attempt = attempt or Try(current_transport())
    return not attempt.must_repeat("finished"), result


def _must_repeat_after(error: BaseException, attempt: Try) -> bool:
    """Agree with the other ranks after an error that does not say that memory ran out here.

    Raises:
        StateError: If it was raised while this rank waited for one whose memory ran out.
    """
    rank = attempt.rank_out_of_memory()
    if rank is not None and isinstance(error, AbsentRankError):
        return attempt.must_repeat("interrupted")
    attempt.fail()
    if rank is not None and isinstance(error, RuntimeError):
        raise StateError(
            f"Memory ran out on process {rank} while this process waited for it in a collective, which cannot be "
            "repeated. Start with a smaller batch size."
        ) from error
    return False


def _with_argument(reduce_batch_size_fn: Callable[..., int]) -> Callable[[int], int]:
    if inspect.signature(reduce_batch_size_fn).parameters:
        return reduce_batch_size_fn
    return lambda batch_size: reduce_batch_size_fn()


def _refuse_batch_size(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise TypeError if there are more arguments than the function has room for beside the batch size."""
    parameters = list(inspect.signature(function).parameters.values())
    takes_any_number = any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
    if takes_any_number or len(parameters) >= len(args) + 1:
        return
    names = [parameter.name for parameter in parameters[1:]]
    rest = ", ".join(f"{name}={value}" for name, value in zip(names, args[1:], strict=False))
    name = getattr(function, "__name__", repr(function))
    raise TypeError(
        f"Batch size was passed into `{name}` as the first argument when called. "
        f"Remove this as the decorator already does so: `{name}({rest})`"
    )
