"""Hand memory back: drop objects, empty the caches of allocators, recognise out-of-memory errors."""

from __future__ import annotations

import gc
import re
from typing import Any

import torch

from accel_state.devices import current_device_backend
from accel_state.runtime import current_runtime, has_runtime

_OUT_OF_MEMORY = re.compile(
    r"out of memory"  # CUDA, ROCm, XPU, MPS, NPU, MLU, MUSA
    r"|can't allocate memory|not enough memory"  # the CPU allocator
    r"|CUDNN_STATUS_NOT_SUPPORTED|CUBLAS_STATUS_ALLOC_FAILED"
    r"|UR_RESULT_ERROR_OUT_OF_|RESOURCE_EXHAUSTED",  # XPU's runtime, XLA
    re.IGNORECASE,
)


def clear_device_cache(garbage_collection: bool = False) -> None:
    """Hand cached, unused memory of this process's device back to the driver.

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
    del objects
    clear_device_cache(garbage_collection=True)
    return [None] * num_objects


def should_reduce_batch_size(exception: BaseException) -> bool:
    """Tell whether an error says that the memory of a device, or of the machine, did not suffice."""
    if isinstance(exception, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(exception, RuntimeError) and _OUT_OF_MEMORY.search(str(exception)) is not None
