from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from accel_checkpoint.formats.safetensor_ranges import read_layout
from accel_checkpoint.reading.direct_reads import DirectReads
from accel_state.errors import CheckpointError

TENSORS = {
    "a": torch.arange(7, dtype=torch.uint8),
    "b": torch.rand(3, 5),
    "c": torch.rand(()),
    "d": torch.rand(2, 0),
    "e": torch.rand(9).bfloat16(),
    "f": torch.randint(-9, 9, (4, 2)),
}


def test_every_tensor_is_read(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors")
    layout, reads = read_layout(tmp_path / "m.safetensors"), DirectReads(tmp_path / "m.safetensors")
    fresh = {name: torch.empty(place.shape, dtype=place.dtype) for name, place in layout.ranges.items()}
    for name, place in layout.ranges.items():
        reads.add(fresh[name], start=place.start, num_bytes=place.num_bytes)
    reads.run()
    assert all(torch.equal(fresh[name], tensor) for name, tensor in TENSORS.items())


def test_large_tensors_are_read_in_pieces_and_gaps_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("accel_checkpoint.reading.direct_reads._JOB_BYTES", 1000)
    content = torch.randint(0, 255, (5000,), dtype=torch.uint8)
    (tmp_path / "raw").write_bytes(content.numpy().tobytes())
    reads, parts = DirectReads(tmp_path / "raw"), [(0, 2500), (2500, 100), (3000, 2000)]
    tensors = [torch.empty(size, dtype=torch.uint8) for _, size in parts]
    for (start, size), tensor in zip(parts, tensors):
        reads.add(tensor, start=start, num_bytes=size)
    assert [sum(num_bytes for _, num_bytes, _ in job) for job in reads.jobs()] == [
        1000,
        1000,
        600,
        1000,
        1000,
    ]
    reads.run()
    assert all(torch.equal(t, content[start : start + size]) for (start, size), t in zip(parts, tensors))


def test_a_file_that_ends_too_early_is_refused(tmp_path):
    (tmp_path / "raw").write_bytes(b"1234")
    reads, kept = DirectReads(tmp_path / "raw"), torch.empty(8, dtype=torch.uint8)
    reads.add(kept, start=0, num_bytes=8)
    with pytest.raises(CheckpointError, match="ends too early"):
        reads.run()
