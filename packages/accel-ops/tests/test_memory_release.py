from __future__ import annotations

import gc
import weakref

import pytest
import torch

from accel_ops import clear_device_cache, release_memory, should_reduce_batch_size


class Knot:
    def __init__(self) -> None:
        self.itself = self
        self.rows = torch.ones(1)


def test_released_objects_are_gone_after_the_assignment():
    first, second = torch.ones(1), Knot()
    watched = weakref.ref(second.rows)
    second.rows.knot = second
    kept, knot = weakref.ref(first), weakref.ref(second)
    first, second = release_memory(first, second)
    assert (first, second) == (None, None)
    assert kept() is None
    gc.collect()
    assert knot() is None
    assert watched() is None


def test_no_objects_give_an_empty_list():
    assert release_memory() == []


def test_clearing_collects_knots_only_on_request():
    gc.collect()
    gc.disable()
    try:
        knot = Knot()
        watched = weakref.ref(knot)
        del knot
        clear_device_cache()
        assert watched() is not None
        clear_device_cache(garbage_collection=True)
        assert watched() is None
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError("NPU out of memory. Tried to allocate 20.00 MiB"),
        RuntimeError("XPU out of memory. Tried to allocate 1 GiB"),
        RuntimeError("Native API failed. Native API returns: 39 (UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY)"),
        RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED."),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`"),
        RuntimeError("cuFFT error: CUFFT_ALLOC_FAILED"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: "
            "you tried"
        ),
        RuntimeError("RESOURCE_EXHAUSTED: Attempting to allocate 1.00G"),
        MemoryError(),
    ],
    ids=lambda error: str(error)[:20] or type(error).__name__,
)
def test_out_of_memory_is_recognised(error):
    assert should_reduce_batch_size(error)


def test_the_real_error_of_the_cpu_allocator_is_recognised():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.int8)
    assert should_reduce_batch_size(caught.value)


@pytest.mark.parametrize(
    "error", [RuntimeError("shapes do not match"), ValueError("out of memory"), KeyError("x")]
)
def test_other_errors_are_not(error):
    assert not should_reduce_batch_size(error)
