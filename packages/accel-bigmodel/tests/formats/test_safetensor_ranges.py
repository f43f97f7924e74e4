from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from accel_bigmodel.formats.direct_reads import DirectReads
from accel_bigmodel.formats.safetensor_ranges import MappedFile, read_layout
from accel_state.errors import CheckpointError

TENSORS = {
    "a": torch.arange(7, dtype=torch.uint8),
    "b": torch.rand(3, 5),
    "c": torch.rand(()),
    "d": torch.rand(2, 0),
    "e": torch.rand(9).bfloat16(),
    "f": torch.randint(-9, 9, (4, 2)),
}


def test_every_tensor_is_found_mapped_and_read(tmp_path):
    save_file(TENSORS, tmp_path / "m.safetensors")
    layout, mapped = read_layout(tmp_path / "m.safetensors"), MappedFile(tmp_path / "m.safetensors")
    assert set(layout.ranges) == set(TENSORS)
    reads = DirectReads(tmp_path / "m.safetensors")
    fresh = {name: torch.empty(place.shape, dtype=place.dtype) for name, place in layout.ranges.items()}
    for name, place in layout.ranges.items():
        assert torch.equal(mapped.tensor(place), TENSORS[name])
        reads.add(fresh[name], start=place.start, num_bytes=place.num_bytes)
    reads.run()
    assert all(torch.equal(fresh[name], tensor) for name, tensor in TENSORS.items())


def test_tensors_at_odd_places_are_copied(tmp_path):
    data = torch.rand(4)
    header = {
        "x": {"dtype": "F32", "shape": [4], "data_offsets": [1, 17]},
        "y": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
    }
    text = json.dumps(header).encode()
    (tmp_path / "m").write_bytes(len(text).to_bytes(8, "little") + text + b"\x01" + data.numpy().tobytes())
    layout = read_layout(tmp_path / "m")
    assert torch.equal(MappedFile(tmp_path / "m").tensor(layout["x"]), data)


def test_large_tensors_are_read_in_pieces_and_gaps_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr("accel_bigmodel.formats.direct_reads._JOB_BYTES", 1000)
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


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{x", "no JSON"),
        (b'["a"]', "no table"),
        (b'{"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}', "`a` is described"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}', "`a` does not lie inside"),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}', "`a` does not lie inside"),
    ],
)
def test_headers_that_lie_are_refused(tmp_path, header, why):
    (tmp_path / "m").write_bytes(len(header).to_bytes(8, "little") + header + b"1234")
    with pytest.raises(CheckpointError, match=why):
        read_layout(tmp_path / "m")


@pytest.mark.parametrize(
    "header",
    [
        '{"a": {"dtype": "F32", "shape": "4", "data_offsets": [0, 16]}}',
        '{"a": {"dtype": "F32", "shape": [2.0, 2], "data_offsets": [0, 16]}}',
        '{"a": {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]}}',
        '{"a": {"dtype": "F32", "shape": [4], "data_offsets": ["0", 16]}}',
        '{"a": {"dtype": "F32", "shape": [4], "data_offsets": [0]}}',
        '{"a": {"dtype": ["F32"], "shape": [4], "data_offsets": [0, 16]}}',
        '{"a": []}',
        '{"__metadata__": [1]}',
        '{"__metadata__": {"a": ["b"]}}',
        "[" * 20_000 + "]" * 20_000,
        "[]",
        '"a"',
    ],
    ids=range(12),
)
def test_malformed_headers_are_named_as_such(tmp_path, header):
    path = tmp_path / "bad.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + bytes(16))
    with pytest.raises(CheckpointError, match="is not a readable safetensors file"):
        read_layout(path)
