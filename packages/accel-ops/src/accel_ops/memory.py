"""Free cached memory, recognize out-of-memory errors, and find the largest batch size that fits on every rank."""

from __future__ import annotations

import functools
import gc
import inspect
import re
from collections.abc import Callable
from typing import Any, overload

import torch

from accel_ops.agreement import Call
from accel_ops.objects import gather_each
from accel_ops.transport import current_transport
from accel_state.devices import current_device_backend
from accel_state.errors import ConfigError
from accel_state.process_group import is_group_up
from accel_state.runtime import current_runtime, has_runtime

_OUT_OF_MEMORY = re.compile(
    r"out of memory"  # CUDA, ROCm, XPU, MPS, NPU, MLU, MUSA
    r"|can't allocate memory|not enough memory"  # the CPU allocator
    r"|CUDNN_STATUS_NOT_SUPPORTED|(CUBLAS|CUDNN|CUSOLVER)_STATUS_ALLOC_FAILED|CUFFT_ALLOC_FAILED"
    r"|UR_RESULT_ERROR_OUT_OF_|RESOURCE_EXHAUSTED",  # XPU's runtime, XLA
    re.IGNORECASE,
)


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Release the unused memory that the allocator of this process's device has cached.

    Args:
        garbage_collection: First collect Python objects that only reference each other, as these may hold
            tensors.
    """
    if garbage_collection:
        gc.collect()
    backend = current_runtime().device_backend if has_runtime() else current_device_backend()
    backend.empty_cache()


def release_memory(*objects: Any) -> list[None]:
    """Return one ``None`` per object, for the variables that held them, and clear the device's cache.

    The caller's variables are the last to hold the objects, so the memory is free only after the assignment
    ``a, b = release_memory(a, b)``; what was unreachable before is collected now.
    """
    num_objects = len(objects)
    del objects  # else this frame would keep them alive during the collection
    clear_device_cache(garbage_collection=True)
    return [None] * num_objects


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Whether an error reports that a device, or the machine, ran out of memory."""
    if isinstance(exception, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(exception, RuntimeError) and _OUT_OF_MEMORY.search(str(exception)) is not None


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
    """Call a function that takes the batch size first with smaller and smaller sizes until memory suffices.

    The caller leaves the batch size out. Everything that needs device memory must be made inside the function;
    garbage is collected before each try. A later call starts with the last size tried.

    With several processes, every rank must call the function. Each try ends with a gather of the outcomes: if one rank
    ran out of memory, all ranks try the smaller size, including ranks that had finished. A rank that waits in a
    collective for the failed rank cannot be recovered: an operation of accel on the CPU or in debug mode raises on all
    ranks, any other collective times out with the process group. Start with a size that lets at least the first
    steps fit on every rank.

    Args:
        function: What to decorate; without it a decorator is returned.
        starting_batch_size: The first size to try.
        reduce_batch_size_fn: Returns the next size to try, given the current one (or nothing, if it takes no
            argument). By default half of it, rounded down.

    Raises:
        TypeError: If the caller passes a batch size.
        RuntimeError: If the size reaches zero.
        ConfigError: If ``reduce_batch_size_fn`` does not reduce it.
        DistributedOperationException: On every rank, if one waits in an operation of accel for a rank that ran out
            of memory; on the CPU always, elsewhere in debug mode.
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
        _check_no_batch_size(function, args)
        clear_device_cache(garbage_collection=True)
        while batch_size > 0:
            fits, result = _try(function, batch_size, args, kwargs)
            if fits:
                return result
            clear_device_cache(garbage_collection=True)
            too_large, batch_size = batch_size, smaller(batch_size)
            if batch_size >= too_large:
                raise ConfigError(
                    f"`reduce_batch_size_fn` must return a smaller batch size than {too_large}, which did not "
                    f"fit into memory, got {batch_size}."
                )
        raise RuntimeError(
            "No executable batch size found, reached zero. Use bf16, shorter sequences or a sharded model."
        )

    return search


def _try(
    function: Callable[..., Any], batch_size: int, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[bool, Any]:
    """Return whether memory sufficed on all ranks, and the result of the function."""
    had_group = is_group_up()
    try:
        result, fits = function(batch_size, *args, **kwargs), True
    except (RuntimeError, MemoryError) as error:
        # Retry outside of this block: `error` has the traceback, whose frames keep the function's tensors in memory.
        if not should_reduce_batch_size(error):
            raise
        result, fits = None, False
    if had_group and not is_group_up():  # the function has ended the group, so no rank is left to agree with
        return fits, result
    transport = current_transport()  # only now: the function may have created the group
    if transport.world_size > 1:
        fits = all(gather_each(transport, Call(find_executable_batch_size), fits))
    return fits, result if fits else None


def _with_argument(reduce_batch_size_fn: Callable[..., int]) -> Callable[[int], int]:
    if inspect.signature(reduce_batch_size_fn).parameters:
        return reduce_batch_size_fn
    return lambda batch_size: reduce_batch_size_fn()


def _check_no_batch_size(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise TypeError if there are more arguments than the function takes in addition to the batch size."""
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
