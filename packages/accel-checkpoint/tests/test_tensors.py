import gc
import weakref

import pytest
import torch

from accel_checkpoint.tensors import (
    DeferredTensor,
    compact_on_cpu,
    copy_of,
    fetched,
    map_tensors,
    second_names_in,
)

VALUES = torch.arange(6.0).reshape(2, 3)


def deferred(values=VALUES):
    return DeferredTensor(values.dtype, values.shape, lambda: values)


def test_its_size_is_known_before_it_is_fetched():
    one = deferred(torch.zeros(3, 4, dtype=torch.bfloat16))
    assert (one.nbytes, one.num_fetched) == (24, 0)
    assert fetched(one).dtype == torch.bfloat16
    assert one.num_fetched == 1
    assert fetched(VALUES) is VALUES


def test_equal_names_are_found_among_deferred_and_other_tensors():
    one = deferred()
    state = {"a": one, "b": VALUES, "c": one, "d": VALUES, "e": deferred(), "f": 3}
    assert second_names_in(state) == {"c": "a", "d": "b"}


@pytest.mark.parametrize("wide", [torch.ones(1000)[:2], torch.ones(2, 1000)[:, 0]])
def test_a_view_of_a_large_storage_is_written_without_the_rest(wide):
    assert compact_on_cpu(wide).untyped_storage().nbytes() == wide.nbytes


def test_copies_are_freed_without_garbage_collection():
    gc.disable()
    try:
        copied = map_tensors({"a": [torch.ones(3)]}, copy_of)
        reference = weakref.ref(copied["a"][0])
        del copied
        assert reference() is None
    finally:
        gc.enable()
