from __future__ import annotations

import mmap
import sys

import pytest
import torch

from accel_bigmodel.offload.transfer import is_in_memory, start_transfer
from accel_checkpoint.formats.safetensor_ranges import ByteRange, MappedFile

NUM_BYTES = 1 << 20
CPU = torch.device("cpu")


@pytest.fixture
def mapped(tmp_path):
    (tmp_path / "raw").write_bytes(bytes(range(256)) * (NUM_BYTES // 256))
    return MappedFile(tmp_path / "raw").tensor(ByteRange(torch.uint8, (NUM_BYTES,), 0, NUM_BYTES))


def test_values_that_are_used_where_they_lie_are_not_copied(mapped):
    for ahead in (False, True):
        transfer = start_transfer(mapped, CPU, prefetch=ahead)
        assert transfer.wait() is mapped


def test_after_a_fetch_ahead_all_of_it_is_in_memory(mapped):
    start_transfer(mapped, CPU, prefetch=True)
    if sys.platform == "linux":
        assert is_in_memory(mapped)
    assert mapped[:256].tolist() == list(range(256))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems are not asked")
def test_memory_that_was_never_touched_is_not_there():
    # A mapping of its own: an allocator may hand out memory that was used before.
    untouched = torch.frombuffer(mmap.mmap(-1, 64 << 20), dtype=torch.uint8)
    assert not is_in_memory(untouched)
    untouched.zero_()
    assert is_in_memory(untouched)


def test_what_is_on_a_device_is_there():
    assert is_in_memory(torch.empty(3, device="meta"))
